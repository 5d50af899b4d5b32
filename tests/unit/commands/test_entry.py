"""The installed command ends its process at once, when all that it began has ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.project import ROOT

PROGRAM = """
import atexit, sys, threading, time
{before}
from stepscope.commands import entry, main


class Kept:
    def __del__(self):
        print("taken apart", flush=True)


def verb():
    {verb}
    atexit.register(print, "registered")
    threading.Thread(target=lambda: (time.sleep(0.3), print("thread"))).start()
    print("answer")
    return {code}


kept = Kept()
main.main = verb
sys.exit(entry.run())
"""
HOLDS_TABLES = "import stepscope.trace.arrays.memory_reuse"


def run_program(*, before: str = "", verb: str = HOLDS_TABLES, code: str = "7", **options):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before, verb=verb, code=code)],
        check=False,
        stderr=subprocess.PIPE,
        text=True,
        timeout=250,
        **{"stdout": subprocess.PIPE, **options},
    )


@pytest.mark.parametrize("code", [0, 3, 141])
def test_output_threads_and_functions_at_exit_come_first(code):
    ended = run_program(code=str(code))
    assert ended.stdout.splitlines() == ["answer", "thread", "registered"]
    assert (ended.returncode, ended.stderr) == (code, "")


def test_a_verb_that_holds_no_tables_ends_as_usual():
    ended = run_program(verb="pass")
    assert ended.stdout.splitlines() == ["answer", "thread", "registered", "taken apart"]
    assert ended.returncode == 7


def test_functions_registered_before_the_command_are_called():
    ended = run_program(before="atexit.register(print, 'earlier')")
    assert ended.stdout.splitlines() == ["answer", "thread", "registered", "earlier", "taken apart"]
    assert ended.returncode == 7


def test_an_error_that_passes_through_the_command_is_shown():
    ended = run_program(code="1 / 0")
    assert "ZeroDivisionError" in ended.stderr
    assert ended.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_output_that_does_not_arrive_is_an_error():
    with Path("/dev/full").open("w") as full:
        at_once, as_usual = (run_program(verb=verb, stdout=full) for verb in (HOLDS_TABLES, "pass"))
    assert "No space left on device" in at_once.stderr
    assert at_once.returncode == as_usual.returncode != 0


def test_the_command_and_the_module_begin_here():
    pyproject = ROOT / "pyproject.toml"
    assert 'stepscope = "stepscope.commands.entry:run"' in pyproject.read_text("utf-8")
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "stepscope", "--version"],
        check=True,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert "stepscope.commands.entry" in ended.stderr


INTERRUPTED = """
import importlib.abc, sys


class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "click":
            raise KeyboardInterrupt


sys.meta_path.insert(0, Interrupting())
from stepscope.commands.entry import run
sys.exit(run())
"""


def test_an_interrupt_while_modules_are_imported_shows_no_traceback():
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
