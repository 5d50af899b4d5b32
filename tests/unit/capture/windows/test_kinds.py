"""Kinds of windows: the control knows none by name, so that a new one is a module and a line."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
from tests.support.runs import manifest_of
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope.capture.options.config import WINDOW_RECORDERS
from stepscope.capture.windows.recorder import Window, finished
from stepscope.run.manifest import WindowRecord

MODULES = [module for module in WINDOW_RECORDERS.values() if module is not None]


@pytest.mark.parametrize("module", MODULES)
def test_each_kind_has_all_that_is_asked_of_it(module):
    recorder = importlib.import_module(f"stepscope.capture.windows.{module}").RECORDER
    assert issubclass(recorder, Window)
    for name in ("start", "stop", "save", *(["cost"] if recorder.can_be_tried else [])):
        assert getattr(recorder, name) is not getattr(Window, name)


class Marks:
    def __init__(self):
        self.whole_steps = ()
        self.step = None

    def open(self, step):
        self.step = step

    def close(self, *, is_whole):
        if is_whole:
            self.whole_steps += (self.step,)


@pytest.fixture
def calls(monkeypatch):
    """The calls that windows of a kind of our own have got."""
    made = []

    class CountingWindow(Window):
        uses_torch_profiler = is_of_one_thread = False

        def __init__(self, tools, plan):
            super().__init__(tools, plan)
            self.ranges = Marks()

        def prepare(self):
            made.append("prepare")

        def start(self):
            made.append("start")
            self.is_recording = True

        def stop(self):
            made.append("stop")
            self.is_recording = False
            return 5

        def save(self, record, step_number):
            made.append(f"save before step {step_number}")
            return finished(record, ())

        def abandon(self):
            made.append("abandon")

    module = ModuleType("stepscope.capture.windows.counting")
    module.RECORDER = CountingWindow
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(WINDOW_RECORDERS, "torch", "counting")
    return made


def train(output, steps, **options):
    training = SmallTraining()
    with stepscope.Profiler(output_dir=output, wait=1, warmup=1, active=2, **options) as profiler:
        for batch in profiler.watch(batches(steps)):
            training.step(batch)
    assert training.losses == bare_losses(steps)


def test_a_kind_of_ones_own_is_driven_like_the_others(tmp_path, calls):
    train(tmp_path, 6)
    assert calls == ["prepare", "start", "stop", "save before step 4"]
    (window,) = manifest_of(tmp_path).windows
    assert (window.state, window.first_step, window.last_step) == ("complete", 2, 3)
    assert window.stop_ns == 5


def test_what_the_loop_breaks_off_is_saved_or_abandoned(tmp_path, calls):
    train(tmp_path / "recording", 3)
    assert calls[1:] == ["start", "stop", "save before step 3"]
    assert manifest_of(tmp_path / "recording").windows[0].state == "partial"
    del calls[:]
    train(tmp_path / "warming up", 1)
    assert calls == ["prepare", "abandon"]
    assert manifest_of(tmp_path / "warming up").windows[0].state == "abandoned"


def test_the_files_made_at_once_complete_the_record():
    record = WindowRecord(3, "saving", first_step=2, last_step=4)
    assert finished(record, ()).state == "complete"
    empty = finished(WindowRecord(3, "saving", first_step=2), ())
    assert (empty.state, empty.first_step) == ("empty", None)
