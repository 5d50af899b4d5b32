"""Kinds of windows: the keeper knows none by name, so that a new one is a module and a line."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType

import pytest
from tests.support.runs import manifest_of
from tests.support.training import SmallTraining, bare_losses, batches

import stepscope
from stepscope.capture.options.config import WINDOW_RECORDERS
from stepscope.capture.windows.kinds import Window, WindowMaker, finished
from stepscope.run.manifest import WindowRecord

MODULES = [module for module in WINDOW_RECORDERS.values() if module is not None]


def members_of(protocol):
    return {name for name in vars(protocol) if not name.startswith("_")}


@pytest.mark.parametrize("module", MODULES)
def test_each_kind_has_all_that_is_asked_of_it(module):
    maker = importlib.import_module(f"stepscope.capture.windows.{module}").MAKER
    written = inspect.getsource(maker)
    assert {name for name in members_of(WindowMaker) if name not in written} == set()
    made = maker.make.__annotations__["return"]
    window = getattr(sys.modules[maker.__module__], made)
    written = inspect.getsource(window)
    assert {name for name in members_of(Window) if name not in written} == set()


class Marks:
    def __init__(self):
        self.whole_steps = ()
        self.step = None

    def open(self, step):
        self.step = step

    def close(self, *, is_whole):
        if is_whole:
            self.whole_steps += (self.step,)


class CountingWindow:
    is_of_one_thread = False
    lengthens_step = False

    def __init__(self, plan, calls):
        self.plan = plan
        self.ranges = Marks()
        self.calls = calls
        self.is_recording = self.is_prepared = False

    def prepare(self):
        self.calls.append("prepare")
        self.is_prepared = True

    def start(self):
        self.calls.append("start")
        self.is_recording = True

    def stop(self):
        self.calls.append("stop")
        self.is_recording = False
        return 5

    def save(self, record, step_number):
        self.calls.append(f"save before step {step_number}")
        return finished(record, ()), None

    def abandon(self):
        self.calls.append("abandon")

    def discard(self, *, has_thread_ended=False):
        self.calls.append("discard")


@pytest.fixture
def calls(monkeypatch):
    """The calls that windows of a kind of our own have got."""
    made = []

    class Maker:
        uses_torchs_profiler = False
        hindrance = ""

        def __init__(self, tools):
            self.tools = tools

        def get_ready(self):
            made.append("get ready")

        def make(self, plan):
            return CountingWindow(plan, made)

        def make_trial(self, plan):
            return None

    module = ModuleType("stepscope.capture.windows.counting")
    module.MAKER = Maker
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
    assert calls == ["get ready", "prepare", "start", "stop", "save before step 4"]
    (window,) = manifest_of(tmp_path).windows
    assert (window.state, window.first_step, window.last_step) == ("complete", 2, 3)
    assert window.stop_ns == 5


def test_what_the_loop_breaks_off_is_saved_or_abandoned(tmp_path, calls):
    train(tmp_path / "recording", 3)
    assert calls[2:] == ["start", "stop", "save before step 3"]
    assert manifest_of(tmp_path / "recording").windows[0].state == "partial"
    del calls[:]
    train(tmp_path / "warming up", 1)
    assert calls[1:] == ["prepare", "abandon"]
    assert manifest_of(tmp_path / "warming up").windows[0].state == "abandoned"


def test_the_files_made_at_once_complete_the_record():
    record = WindowRecord(3, "saving", first_step=2, last_step=4)
    assert finished(record, ()).state == "complete"
    empty = finished(WindowRecord(3, "saving", first_step=2), ())
    assert (empty.state, empty.first_step) == ("empty", None)
