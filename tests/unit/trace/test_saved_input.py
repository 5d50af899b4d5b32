"""Standard input, saved for verbs that read a trace more than once."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us
from tests.support.standard_input import standard_input

from stepscope.commands.main import cli, main

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


@dataclass(frozen=True)
class Done:
    """How a verb ended, and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def ask(tmp_path, monkeypatch, capfd):
    """Runs a verb with something at its standard input, and what it leaves to the process's end."""
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    at_exit = []
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))

    def run(words: list[str], given: bytes = b"") -> Done:
        with standard_input(given):
            code = main(words)
        while at_exit:
            function, *given_to_it = at_exit.pop()
            function(*given_to_it)
        return Done(code, *capfd.readouterr())

    return run


@pytest.mark.parametrize("stores", ["beside", "cache"])
def test_a_report_of_standard_input_is_that_of_the_file_and_leaves_nothing(ask, tmp_path, stores):
    file = tmp_path / "one.json"
    file.write_bytes(trace())
    of_file = ask(["report", str(file)])
    cache = tmp_path / "empty"
    piped = subprocess.run(
        [sys.executable, "-m", "stepscope", "report", "-"],
        input=trace(),
        capture_output=True,
        check=False,
        env={**os.environ, "STEPSCOPE_CACHE": str(cache), "STEPSCOPE_STORES": stores},
    )
    assert piped.returncode == of_file.code == 0, piped.stderr
    assert piped.stdout.decode().replace("standard input", str(file)) == of_file.out
    assert list(cache.iterdir()) == []


def test_the_page_and_json_of_standard_input_name_it(ask):
    done = ask(["report", "-", "--format", "json"], trace())
    assert json.loads(done.out)["path"] == "standard input"
    page = ask(["report", "-", "--format", "html"], trace())
    assert "<title>standard input" in page.out


def test_the_viewer_reads_standard_input_as_often_as_it_needs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OPENED],
        input=trace(),
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "STEPSCOPE_CACHE": str(tmp_path / "cache")},
    )
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
def test_what_is_no_trace_is_not_saved(ask, tmp_path, given, words):
    done = ask(["report", "-"], given)
    assert done.code == 3
    assert words in done.err
    assert done.err.count("\n") == 1
    assert list((tmp_path / "cache").iterdir()) == []


def test_standard_input_without_end_is_given_up(ask, tmp_path, monkeypatch):
    endless = b'{"traceEvents":[' + b'{"ph":"X","name":"a","ts":1,"dur":1},' * 100_000
    monkeypatch.setenv("STEPSCOPE_INPUT_LIMIT", "2MB")
    done = ask(["report", "-"], endless)
    assert done.code == 3
    assert "standard input: holds more than 2 MB" in done.err
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
def test_verbs_that_read_no_traces_say_that_standard_input_is_not_for_them(ask, verb):
    done = ask([verb, "-"], trace())
    assert done.code == 3
    assert "not read from standard input: save it to a file" in done.err
