"""What the training process imports of ours, and when."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.support.project import ROOT
from tests.support.warm_python import VARIABLES, warm_python

MOST_MODULES = 60
BEGIN = """
import sys, tempfile, time
import torch

def ours():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "stepscope")

options = dict(output_dir={output!r}, announce=False, skip_first=0, wait=1, warmup=1, active=2)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = torch.utils.data.TensorDataset(torch.ones(40, 4))

def train(batch):
    model(batch).sum().backward()
    optimizer.step()
"""
FIRST_STEP = """
import stepscope
with stepscope.Profiler(**{{**options, "wait": 1000}}) as profiler:
    profiler.step()
    print(*ours())
"""
LOOP = """
import stepscope
with stepscope.Profiler(**options) as profiler:
    for (batch,) in profiler.watch(torch.utils.data.DataLoader(data, batch_size=4)):
        train(batch)
print(*ours())
"""
RUN = """
from stepscope.adapters.script.hooks import install
recorder = install(
    {{"options": options, "step_on": "optimizer", "notes": tempfile.mkdtemp()}}
)
for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
    train(batch)
recorder.finish()
print(*ours())
"""
CALLBACK = """
from stepscope.adapters.callbacks.training import CallbackBase
from stepscope.capture.ranks import RankIdentity
recorder = CallbackBase(**options)._recorder
recorder.begin(RankIdentity())
for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
    recorder.forward()
    train(batch)
    recorder.step_ended()
recorder.finish()
print(*ours())
"""


def imported(output, script):
    done = subprocess.run(
        [warm_python(), "-c", (BEGIN + script).format(output=str(output))],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **VARIABLES},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_step_needs_none_of_what_windows_flags_or_the_end_do(tmp_path):
    modules = imported(tmp_path, FIRST_STEP)
    absent = ("adapters.options", "artifacts", "capture.ending", "capture.windows.saving")
    assert [
        name for name in modules if name.startswith(tuple(f"stepscope.{a}" for a in absent))
    ] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("script", [LOOP, RUN, CALLBACK], ids=["loop", "run", "callback"])
def test_a_whole_training_with_a_window_imports_few_modules(tmp_path, script):
    modules = imported(tmp_path, script)
    assert "stepscope.capture.windows.torch_window" in modules
    assert len(modules) <= MOST_MODULES, modules


THREAD = """
import stepscope
from stepscope.capture.record import step_writer

step_writer._EVERY_S = 0.01
profiler = stepscope.Profiler(**{{**options, "wait": 1000}})
profiler.start()
profiler.step()
wanted = {{"stepscope.capture.windows.torch_window", "stepscope.capture.ending"}}
until = time.monotonic() + 120
while time.monotonic() < until and not wanted <= set(ours()):
    time.sleep(0.01)
print(*ours())
profiler.stop()
"""


def test_a_thread_imports_what_windows_and_the_end_need_before_they_come(tmp_path):
    modules = imported(tmp_path, THREAD)
    assert {"stepscope.capture.windows.torch_window", "stepscope.capture.ending"} <= set(modules)
