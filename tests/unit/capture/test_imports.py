"""What the training process imports of ours, and when."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.project import ROOT

MOST_MODULES = 60
SCRIPT = """
import sys, time
import torch
import stepscope
from stepscope.capture.record import step_writer

step_writer._EVERY_S = {every_s}
profiler = stepscope.Profiler(output_dir={output!r}, announce=False, wait=1000)
profiler.start()
profiler.step()

def ours():
    return {{name for name in sys.modules if name.partition(".")[0] == "stepscope"}}

def has_all():
    return {{"stepscope.capture.windows.torch_window", "stepscope.capture.ending"}} <= ours()

until = time.monotonic() + {wait_s}
while time.monotonic() < until and not has_all():
    time.sleep(0.01)
print(*sorted(ours()))
profiler.stop()
"""


def imported(output, every_s, wait_s):
    text = SCRIPT.format(output=str(output), every_s=every_s, wait_s=wait_s)
    done = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_step_needs_few_modules_and_none_of_those_for_windows_flags_or_the_end(tmp_path):
    modules = imported(tmp_path, 1000.0, 0.0)
    assert len(modules) <= MOST_MODULES, modules
    absent = ("adapters.options", "artifacts", "capture.ending", "capture.windows.saving")
    assert [
        name for name in modules if name.startswith(tuple(f"stepscope.{a}" for a in absent))
    ] == []


def test_a_thread_imports_what_windows_and_the_end_need_before_they_come(tmp_path):
    modules = imported(tmp_path, 0.01, 120.0)
    assert {"stepscope.capture.windows.torch_window", "stepscope.capture.ending"} <= set(modules)
