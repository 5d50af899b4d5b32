"""The Python of other tests that has imported torch before: it runs scripts as Python does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from tests.support import warm_python as support
from tests.support.guides import environment
from tests.support.warm_python import is_served, warm_python

WHAT_A_SCRIPT_SEES = """
import atexit, os, sys, threading, time
HIDDEN = ("torch", "numpy", "polars", "_polars", "tests")
print(sys.argv, sys.path, sorted(os.environ), os.getcwd(), os.umask(0), __name__, __file__)
print([name for name in sys.modules if name.startswith(HIDDEN)])
import numpy
print("torch" in sys.modules, numpy.ones(2).sum())
import torch
print(torch.ones(2).sum(), "torch.nn" in sys.modules, "torch._dynamo" in sys.modules)
weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1.0)
weight.sum().backward()
optimizer.step()
print([name for name in sys.modules if name.startswith(("polars", "_polars"))])
import polars
print(polars.Series([1, 2]).sum(), polars.__file__, "polars.testing" in sys.modules)
print(weight, isinstance(torch.nn.Linear(1, 1), torch.nn.Module), os.write(int(sys.argv[1]), b"."))
atexit.register(print, "the end")
threading.Thread(target=lambda: (time.sleep(0.1), print("a thread"))).start()
print(input(), file=sys.stderr)
"""
ENDS = {
    "error": "raise ValueError('wrong')",
    "exit code": "raise SystemExit(7)",
    "exit words": "raise SystemExit('no more')",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "no such module": "import no_such_module",
}


def run(python, words, folder, **more):
    return subprocess.run(
        [python, *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        **more,
    )


def test_variables_that_are_read_early_are_put_back(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MKL_NUM_THREADS", "4")
    monkeypatch.delenv("POLARS_MAX_THREADS", raising=False)
    before = dict(os.environ)
    with support.variables_put_back():
        os.environ["OMP_NUM_THREADS"] = "5"
        del os.environ["MKL_NUM_THREADS"]
        os.environ["POLARS_MAX_THREADS"] = "6"
        os.environ["OF_NO_LIBRARY"] = "7"
    assert os.environ.pop("OF_NO_LIBRARY") == "7"
    assert dict(os.environ) == before


@pytest.mark.parametrize("turn", [1, 2])
def test_what_one_test_sets_the_next_does_not_see(turn):
    """As `keep_freed_memory` sets it in every test that runs `report` in its process."""
    assert "OPENBLAS_NUM_THREADS" not in support.read_early()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"


def test_a_script_sees_and_writes_what_it_would(tmp_path):
    (tmp_path / "script.py").write_text(WHAT_A_SCRIPT_SEES)
    seen = []
    for python in (sys.executable, warm_python()):
        with (tmp_path / "given").open("wb") as given:
            words = ("script.py", str(given.fileno()))
            ended = run(python, words, tmp_path, input="asked\n", pass_fds=[given.fileno()])
        assert (ended.returncode, ended.stderr) == (0, "asked\n")
        assert (tmp_path / "given").read_bytes() == b"."
        seen.append(ended.stdout.replace(words[1], "NUMBER"))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("how", ENDS)
def test_it_ends_as_the_script_does(tmp_path, how):
    plain, warm = (
        run(python, ("-c", ENDS[how]), tmp_path) for python in (sys.executable, warm_python())
    )
    assert warm.returncode == plain.returncode
    assert warm.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_reach_the_script(tmp_path, number):
    text = "import time; print('ready', flush=True); time.sleep(250)"
    with subprocess.Popen(
        [warm_python(), "-c", text],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        # The script has ended once nobody can write to its output any more.
        assert process.stdout.read() == b""
    assert process.returncode == -number


def test_what_it_does_not_know_runs_in_a_new_process(tmp_path):
    words = ("-c", "import sys; print(sys.executable, sys.flags.dont_write_bytecode)")
    assert run(warm_python(), ("-B", *words), tmp_path).stdout == f"{sys.executable} 1\n"


def test_another_worker_uses_the_one_that_runs(tmp_path):
    program = Path(warm_python())
    written = program.stat().st_mtime_ns
    text = (
        "import pathlib, sys; from tests.support.warm_python import is_served; "
        "print(is_served(pathlib.Path(sys.argv[1])))"
    )
    assert run(sys.executable, ("-c", text, str(program.parent)), tmp_path).stdout == "True\n"
    assert program.stat().st_mtime_ns == written
    # The other's end is not the end of it.
    assert run(warm_python(), ("-c", "import sys; print(sys.orig_argv[0])"), tmp_path).stdout == (
        f"{program}\n"
    )


def test_it_ends_with_the_last_of_its_users(monkeypatch):
    monkeypatch.setattr(support, "_import_and_hide", list)
    folder = Path(tempfile.mkdtemp())  # a socket's path must be short
    os.mkfifo(folder / "users")
    thread = threading.Thread(
        target=support.serve, args=(str(folder / "socket"), str(folder / "python")), daemon=True
    )
    thread.start()
    first, last = (os.open(folder / "users", os.O_WRONLY) for _ in range(2))
    os.close(first)
    thread.join(0.3)
    assert thread.is_alive()
    os.close(last)
    thread.join(60)
    assert not thread.is_alive()
    assert not folder.exists()


def test_one_that_has_ended_is_not_waited_for(tmp_path):
    assert not is_served(tmp_path / "removed")
    os.mkfifo(tmp_path / "users")
    assert not is_served(tmp_path)
