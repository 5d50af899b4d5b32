"""Forks of a training that has recorded a window."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

_SCRIPT = """
import ctypes, os, sys
import stepscope, torch

def fork():
    process = os.fork()
    if not process:
        ctypes.CDLL(None).printf(b"printed by C;")
        print("left", flush=False)
        sys.exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])

codes = []
with stepscope.Profiler(output_dir=sys.argv[1], wait=0, warmup=1, active=1, announce=False,
                        monitor=False) as profiler:
    for step in range(4):
        torch.ones(3).add(1)
        if step == 1:
            codes.append(fork())
        profiler.step()
    codes.append(fork())
codes.append(fork())
print(codes)
"""


def _printed(script: str, folder: Path) -> str:
    """What a script prints that is given a folder."""
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the C library's on_exit")
def test_a_fork_exits_with_its_code_after_a_window_and_within_one(tmp_path: Path) -> None:
    printed = _printed(_SCRIPT, tmp_path)
    assert printed.endswith("[3, 3, 3]\n")
    assert printed.count("left") == printed.count("printed by C;") == 3


_CENSUS = """
import os, sys
from pathlib import Path
import stepscope, torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

def train():
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

with stepscope.Profiler(output_dir=sys.argv[1], wait=0, warmup=1, active=3, announce=False,
                        memory_census=True) as profiler:
    census = profiler.run_path / "rank00000" / "memory_census.jsonl"
    seen = []
    for step in range(4):
        train()
        profiler.step()
        if step == 1:
            seen.append(census.read_bytes())
            process = os.fork()
            if not process:
                train()
                profiler.step()
                os._exit(0)
            os.waitpid(process, 0)
            seen.append(census.read_bytes())
    seen.append(census.read_bytes())
print(seen[0] == seen[1], len(seen[2]) > len(seen[1]) > 0)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_a_fork_within_a_window_adds_nothing_to_the_census_of_its_parent(tmp_path: Path) -> None:
    printed = _printed(_CENSUS, tmp_path)
    assert printed == "True True\n"
