"""Ctrl-C ends a loop over many rows at once, wherever in it the machine code is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import sys
import numpy as np, numpy.typing as npt
from stepscope.trace.machine.helpers import jit_helper
from stepscope.trace.machine.jit import jit

LAST = 2**62

@jit_helper
def turns(values: npt.NDArray[np.int64], at: int) -> int:
    while at >= 0:
        at = values[at]
    return at

@jit
def calls(values: npt.NDArray[np.int64]) -> int:
    return turns(values, 0)

@jit
def counts(values: npt.NDArray[np.int64]) -> int:
    total = 0
    for first in range(LAST):
        for second in range(first & 7):
            total += values[second]
    return total

loop = {"calls": calls, "counts": counts}[sys.argv[1]]
loop.load()
print("begun", flush=True)
try:
    loop(np.zeros(10_000_000, np.int64))
except KeyboardInterrupt:
    print("interrupted")
print(calls(np.full(1_000_000, -1)))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("loop", ["calls", "counts"])
def test_ctrl_c_ends_a_loop_that_would_not_end(tmp_path: Path, loop: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py"), loop],
        env=os.environ | {"STEPSCOPE_COMPILED": str(tmp_path / "kept")},
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "interrupted\n-1\n"
    assert process.returncode == 0
