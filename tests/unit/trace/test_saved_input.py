"""Standard input, saved for verbs that read a trace more than once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us

from stepscope.commands.main import cli

REPORT = [sys.executable, "-m", "stepscope", "report", "-"]
OPENED = """
import sys
from stepscope.trace.load import load
from stepscope.viewer.origins import origins_of

[origin] = origins_of(["-"])
print(origin.title, load(origin.path).event_count, load(origin.path).event_count)
"""


def trace() -> bytes:
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            t.op("aten::mm").launch("sgemm", us(100))
            t.sync()
    return t.json()


def run(
    words: list[str], given: bytes, cache: Path, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, "STEPSCOPE_CACHE": str(cache), **variables}
    return subprocess.run(words, input=given, capture_output=True, check=False, env=environment)


@pytest.mark.parametrize("stores", ["beside", "cache"])
def test_a_report_of_standard_input_is_that_of_the_file_and_leaves_nothing(tmp_path, stores):
    file = tmp_path / "one.json"
    file.write_bytes(trace())
    of_file = run([*REPORT[:-1], str(file)], b"", tmp_path / "none")
    cache = tmp_path / "cache"
    piped = run(REPORT, trace(), cache, STEPSCOPE_STORES=stores)
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout.decode().replace("standard input", str(file)) == of_file.stdout.decode()
    assert list(cache.iterdir()) == []


def test_the_page_and_json_of_standard_input_name_it(tmp_path):
    done = run([*REPORT, "--format", "json"], trace(), tmp_path / "cache")
    assert json.loads(done.stdout)["path"] == "standard input"
    page = run([*REPORT, "--format", "html"], trace(), tmp_path / "cache")
    assert b"<title>standard input" in page.stdout


def test_the_viewer_reads_standard_input_as_often_as_it_needs(tmp_path):
    done = run([sys.executable, "-c", OPENED], trace(), tmp_path / "cache")
    title, once, again = done.stdout.decode().split()
    assert (title, once) == ("standard-input", again)
    assert int(once) > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"", "standard input: empty; the recorder wrote nothing"),
        (b"\x89PNG\r\n" * 1000, "standard input: a picture, not a trace"),
        (b"\x80\x04" + b"x" * 5_000_000, "standard input: a memory snapshot"),
        (b"y\n" * 2_000_000, "standard input: neither JSON nor any other known"),
        (b'{"traceEvents": 12', "standard input: has no list of events"),
    ],
    ids=["empty", "picture", "snapshot", "yes", "no events"],
)
def test_what_is_no_trace_is_not_saved(tmp_path, given, words):
    done = run(REPORT, given, tmp_path / "cache")
    assert done.returncode == 3
    assert words in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
    assert list((tmp_path / "cache").iterdir()) == []


def test_standard_input_without_end_is_given_up(tmp_path):
    endless = b'{"traceEvents":[' + b'{"ph":"X","name":"a","ts":1,"dur":1},' * 100_000
    done = run(REPORT, endless, tmp_path / "cache", STEPSCOPE_INPUT_LIMIT="2MB")
    assert done.returncode == 3
    assert "standard input: holds more than 2 MB" in done.stderr.decode()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["report", "-", "-"],
        ["report", "-", "--baseline", "-"],
        ["show", "kernels", "-", "-"],
        ["show", "abnormal-collectives", "-", "--baseline", "-"],
        ["compare", "-", "-"],
        ["info", "-", "-"],
        ["view", "-", "-"],
    ],
    ids=" ".join,
)
def test_standard_input_is_given_once(words):
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "standard input can be read only once" in done.output


@pytest.mark.parametrize("verb", ["memory", "hangs"])
def test_verbs_that_read_no_traces_say_that_standard_input_is_not_for_them(verb, tmp_path):
    done = run([sys.executable, "-m", "stepscope", verb, "-"], trace(), tmp_path / "cache")
    assert done.returncode == 3
    assert b"not read from standard input: save it to a file" in done.stderr
