"""What a verb says on a terminal while it works: which stage, and nothing where nobody watches."""

from __future__ import annotations

import io
import os
import pickle
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.planted import dump
from tests.support.project import ROOT
from tests.support.rank_jobs import rank_of_job
from tests.support.snapshots import PROGRAMS

from stepscope.commands.main import cli
from stepscope.terminal import working
from stepscope.terminal.working import StatusLine, WorkingLine, current_line

CLEARED = "\r\x1b[1A\x1b[2K"
CONTROL = re.compile(r"(?:\r|\n|\x1b\[[0-9;?]*[A-Za-z])+")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Each text that the line showed."""
        return [text for text in CONTROL.split(self.getvalue()) if text]


@pytest.fixture(autouse=True)
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind of terminal does not depend on who runs the tests, and names of files fit it."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines show at once."""
    for name in ("_PATIENCE_SECONDS", "_INTERVAL_SECONDS", "_STATUS_INTERVAL_SECONDS"):
        monkeypatch.setattr(working, name, 0.0005)


def wait_for(seen: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not seen() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert seen()


@pytest.mark.usefixtures("hurried")
def test_the_line_names_the_innermost_stage_and_returns_to_the_outer_one():
    stream = Terminal()
    with working.working("Diagnosing", stream):
        wait_for(lambda: "Diagnosing · 0 s" in stream.lines())
        with pytest.raises(ValueError, match="x"), working.working("Checking"):
            wait_for(lambda: "Checking · 0 s" in stream.lines())
            raise ValueError("x")
        count = len(stream.lines())
        wait_for(lambda: "Diagnosing · 0 s" in stream.lines()[count + 1 :])
    assert stream.getvalue().endswith(CLEARED)
    assert current_line() is None


@pytest.mark.usefixtures("hurried")
def test_progress_within_a_stage_takes_its_place(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with working.working("Diagnosing"):
        status = StatusLine()
        time.sleep(0.01)
        status.update("Reading ranks · 3 of 8")
        wait_for(lambda: "Reading ranks · 3 of 8" in stream.lines())
        status.close()
        count = len(stream.lines())
        wait_for(lambda: "Diagnosing · 0 s" in stream.lines()[count + 1 :])
    assert stream.getvalue().endswith(CLEARED)


@pytest.mark.usefixtures("hurried")
def test_one_thread_at_a_time_draws_the_line():
    first, second = Terminal(), Terminal()
    with working.working("Loading", first):

        def other() -> None:
            with working.working("Answering", second):
                time.sleep(0.02)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert not second.getvalue()
    with working.working("Answering", second):
        wait_for(lambda: bool(second.getvalue()))


@pytest.mark.usefixtures("hurried")
def test_the_line_fits_the_terminal_and_steers_nothing(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    with working.working("Reading \x1b[2J" + "x" * 300 + "/trace.json", stream):
        wait_for(lambda: bool(stream.lines()))
    shown = stream.lines()[0]
    assert shown.startswith("Reading �[2Jxxx")
    assert "x…x" in shown
    assert shown.endswith("/trace.json · 0 s")
    assert len(shown) == 59
    assert "\x1b[?25l" not in stream.getvalue()  # a killed command could not show the cursor again


@pytest.mark.usefixtures("hurried")
def test_a_terminal_that_cannot_replace_a_line_shows_none(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with working.working("Diagnosing", stream):
        time.sleep(0.02)
    assert not stream.getvalue()


def test_a_person_waits_from_the_beginning_of_the_command(monkeypatch):
    monkeypatch.setattr(working, "_PATIENCE_SECONDS", 30.0)
    began = time.monotonic() - 31
    monkeypatch.setattr(working.time, "monotonic", lambda: began)
    working.command_begins()
    monkeypatch.undo()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(working, "_PATIENCE_SECONDS", 30.0)
    first, second = Terminal(), Terminal()
    with working.working("Reading", first):
        wait_for(lambda: "Reading · 0 s" in first.lines())
    with working.working("Answering", second):
        time.sleep(0.02)
    assert not second.getvalue()


def test_what_is_done_at_once_does_not_import_rich():
    code = (
        "import sys; from stepscope.terminal.working import working\n"
        "sys.stderr.isatty = lambda: True\n"
        "with working('Answering', sys.stderr): pass\n"
        "assert 'threading' in sys.modules and 'rich' not in sys.modules, 'rich'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stderr == b""


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("one") / "rank0.pt.trace.json"
    path.write_bytes(dump(rank_of_job(0, (0,))))
    return path


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "snapshot.pickle"
    path.write_bytes(pickle.dumps(PROGRAMS["out of memory"]()))
    return path


STAGES = {
    "report": ({"Diagnosing", "Finding steps, nesting and links", "Checking launch-bound"}, ()),
    "show kernels": ({"Looking for traces", "Answering kernels of", "Finding steps"}, ()),
    "info": ({"Describing"}, ()),
    "memory": ({"Reading", "Answering overview"}, ()),
}
SLOWER = {
    "report page": (
        {"Diagnosing", "Filling the page", "Answering kernels", "Answering memory"},
        ("--format", "html"),
    ),
    "compare": ({"Comparing", "Finding steps"}, ("{trace}",)),
    "export": ({"Exporting to"}, ("-o", "{trace}.pftrace")),
    "query": ({"Querying"}, ("SELECT 1",)),
    "show ranks": ({"Answering ranks"}, ()),
}


@pytest.mark.parametrize(
    "name", [*STAGES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOWER)]
)
def test_every_verb_names_its_stages(name, trace, snapshot, monkeypatch):
    stages, more = {**STAGES, **SLOWER}[name]
    words = name.removesuffix(" page").split()
    path = snapshot if name == "memory" else trace
    arguments = [*words, str(path), *(one.format(trace=trace) for one in more)]
    entered: list[str] = []
    enter = WorkingLine.enter

    def noted(line: WorkingLine, what: str) -> None:
        entered.append(what)
        enter(line, what)

    monkeypatch.setattr(WorkingLine, "enter", noted)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    cli.main(arguments, standalone_mode=False)
    missing = {one for one in stages if not any(what.startswith(one) for what in entered)}
    assert not missing, entered
    assert current_line() is None


SAID = {"info": ("Describing", "Written by"), "report": ("Diagnosing", "Verdict")}


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo terminals")
@pytest.mark.parametrize("verb", ["info", pytest.param("report", marks=pytest.mark.slow)])
def test_a_terminal_is_told_what_goes_on_and_a_pipe_is_not(verb, trace):
    doing, result = SAID[verb]
    code = (
        "import sys; from stepscope.terminal import working\n"
        "working._PATIENCE_SECONDS = working._INTERVAL_SECONDS = 0.001\n"
        "from stepscope.commands.main import main\n"
        f"sys.exit(main([{verb!r}, {str(trace)!r}]))"
    )
    command = [sys.executable, "-c", code]
    at_terminal = [sys.executable, str(ROOT / "tests/support/terminal.py"), "never", "1"]
    done = subprocess.run([*at_terminal, *command], capture_output=True, check=True)
    shown, _, printed = done.stdout.decode().rpartition(CLEARED)
    assert f"{doing} {trace} · " in shown
    assert result in printed
    assert result not in shown
    alone = subprocess.run(command, capture_output=True, check=True)
    assert "\x1b" not in os.fsdecode(alone.stdout)
    assert alone.stderr == b""
    assert result.encode() in alone.stdout
