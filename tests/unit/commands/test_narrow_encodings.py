"""Output in an encoding that lacks what Stepscope prints, such as that of a pipe on Windows."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.terminal.plain_text import tolerate_narrow_encoding


def written(text, encoding):
    stream = io.TextIOWrapper(io.BytesIO(), encoding)
    tolerate_narrow_encoding(stream)
    stream.write(text)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("ascii", "##| 5 us x 2 ... -> r\\xe9seau \\u8bad \\U0001f600"),
        ("cp1252", "##| 5 µs × 2 … -> réseau \\u8bad \\U0001f600"),
        ("utf-8", "██▏ 5 µs × 2 … → réseau 训 😀"),
    ],
)
def test_what_an_encoding_lacks_gets_a_stand_in_or_is_escaped(encoding, expected):
    assert written("██▏ 5 µs × 2 … → réseau 训 😀", encoding) == expected


def test_half_a_character_from_a_file_is_escaped():
    assert written("a\udcffb", "utf-8") == "a\\udcffb"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "words",
    [
        ["report", "trace.json"],
        ["report", "trace.json", "--format", "md"],
        ["show", "kernels", "trace.json"],
        ["query", "trace.json", "SELECT name, dur_ns FROM kernels"],
        ["info", "trace.json"],
    ],
    ids=" ".join,
)
def test_no_verb_prints_what_an_ascii_pipe_lacks(tmp_path, words):
    trace = GpuTrace()
    for _ in range(3):
        with trace.step():
            trace.data_wait(ms(4))
            trace.op("aten::mm").launch("ampere_sgemm", us(300))
            trace.sync()
    (tmp_path / "trace.json").write_bytes(trace.json())
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-m", "stepscope", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=True,
    )
    assert done.stdout.isascii()
    assert b"\\u" not in done.stdout
    assert b"us" in done.stdout or words[0] in {"query", "info"}
