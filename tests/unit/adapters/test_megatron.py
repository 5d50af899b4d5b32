"""Megatron's timers as phases, and its arguments as options."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.adapters.megatron import follow_timers
from stepscope.capture.options.option import ConfigError
from stepscope.errors import UsageError

NAMES = ("forward-backward", "batch-generator", "forward-compute", "interval-time", "optimizer")


class Timer:
    def __init__(self):
        self.told = []

    def start(self, barrier=False):
        self.told.append(("start", barrier))

    def stop(self, barrier=False):
        self.told.append(("stop", barrier))

    def elapsed(self):
        return 3.5


class Timers:
    def __init__(self):
        self.made = {}

    def __call__(self, name, log_level=None):
        return self.made.setdefault(name, Timer())


class Listener:
    """Says which phases are open, and never lets one end inside another that began in it."""

    def __init__(self):
        self.open = []
        self.told = []
        self.config = SimpleNamespace(enabled=True)
        self.session = self.steps = self
        self.before_end = []

    @contextlib.contextmanager
    def phase(self, name):
        self.open.append(name)
        self.told.append(tuple(self.open))
        yield
        assert self.open.pop() == name

    def waiting(self):
        return self.phase("wait")


def test_nested_timers_become_nested_phases_and_a_wait_interrupts_them():
    timers, listener = Timers(), Listener()
    follow_timers(timers, listener)
    timers("interval-time", log_level=0).start(barrier=True)
    timers("forward-backward").start()
    timers("forward-compute").start()
    timers("batch-generator").start()
    timers("batch-generator").stop()
    timers("forward-compute").stop()
    timers("forward-backward").stop()
    outer = "forward-backward"
    inner = (outer, "forward-compute")
    assert listener.told == [(outer,), inner, ("wait",), (outer,), inner]
    assert listener.open == []
    assert timers.made["interval-time"].told == [("start", True)]
    assert timers("interval-time").elapsed() == 3.5


def test_timers_that_overlap():
    timers, listener = Timers(), Listener()
    follow_timers(timers, listener)
    timers("a").start()
    timers("b").start()
    timers("a").stop()
    timers("b").stop()
    assert listener.told == [("a",), ("a", "b"), ("b",)]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=40))
def test_whatever_runs_the_open_phases_are_those_whose_timers_run(events):
    timers, listener = Timers(), Listener()
    watch = follow_timers(timers, listener)
    running = []
    for name, is_start in events:
        if is_start:
            timers(name).start()
            running += [name] if name != "interval-time" else []
        else:
            timers(name).stop()
            if name in running:
                del running[len(running) - 1 - running[::-1].index(name)]
        waits = ["wait"] if "batch-generator" in running else []
        assert listener.open == (waits or running)
    watch.close()
    assert listener.open == []
    assert type(timers) is Timers


def test_after_the_end_the_timers_are_what_they_were():
    timers, listener = Timers(), Listener()
    follow_timers(timers, listener)
    kept = timers("optimizer")
    kept.start()
    (end,) = listener.before_end
    end()
    assert listener.open == []
    assert type(timers) is Timers
    kept.stop()
    kept.start()
    assert listener.open == []


def test_a_profiler_that_does_nothing_leaves_the_timers_alone():
    timers = Timers()
    follow_timers(timers, stepscope.Profiler(enabled=False))
    assert type(timers) is Timers
    with pytest.raises(UsageError, match="get_timers"):
        follow_timers(object(), stepscope.Profiler())


# -- arguments ------------------------------------------------------------------------------------


def megatron(**more):
    """The names and defaults of Megatron-LM's parser."""
    values = {
        "profile": False,
        "profile_step_start": 10,
        "profile_step_end": 12,
        "use_pytorch_profiler": False,
        "pytorch_profiler_collect_shapes": False,
        "pytorch_profiler_collect_callstack": False,
        "pytorch_profiler_collect_chakra": False,
        "profile_ranks": [0],
        "record_memory_history": False,
        "memory_snapshot_path": "snapshot.pickle",
        "tensorboard_dir": None,
        "lr": 0.1,
    }
    return SimpleNamespace(**{**values, **more})


def test_megatrons_own_arguments_are_known_by_their_names(tmp_path):
    args = megatron(
        profile=True,
        use_pytorch_profiler=True,
        profile_ranks=[0, 3],
        tensorboard_dir=str(tmp_path),
        pytorch_profiler_collect_shapes=True,
    )
    config = stepscope.Profiler.from_args(args).config
    assert config.enabled
    assert (config.skip_first, config.wait, config.warmup) == (0, 9, 1)
    assert (config.active, config.repeat) == (2, 1)
    # The schedule that Megatron gives to torch's profiler for these steps records the same.
    assert list(config.schedule.recorded_steps(0)) == [10, 11]
    assert config.ranks == (0, 3)
    assert str(config.output_dir) == str(config.tensorboard_dir) == str(tmp_path)
    assert (config.record_shapes, config.with_stack) == (True, False)
    assert not config.memory_history
    assert not config.memory_snapshot_at_end


@pytest.mark.parametrize(
    ("given_args", "is_on"),
    [
        ({}, False),
        ({"profile": True}, False),
        ({"use_pytorch_profiler": True}, False),
        ({"profile": True, "use_pytorch_profiler": True}, True),
    ],
)
def test_megatron_needs_both_flags(given_args, is_on):
    assert stepscope.Profiler.from_args(megatron(**given_args)).config.enabled is is_on


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [(0, 2, (0, 0, 2)), (1, 2, (0, 1, 1)), (10, 12, (9, 1, 2)), (5, 6, (4, 1, 1))],
)
def test_start_and_end_are_the_schedule_that_megatron_makes_of_them(start, end, wanted):
    config = stepscope.Profiler.from_args(
        megatron(profile_step_start=start, profile_step_end=end)
    ).config
    assert (config.wait, config.warmup, config.active) == wanted
    assert list(config.schedule.recorded_steps(0)) == list(range(start, end))


def test_no_ranks_are_those_of_the_default_and_no_steps_are_refused():
    assert stepscope.Profiler.from_args(megatron(profile_ranks=[])).config.ranks == (0,)
    with pytest.raises(ConfigError, match="no step to record"):
        stepscope.Profiler.from_args(megatron(profile_step_start=12))


def test_the_memory_history_is_written_at_the_end():
    config = stepscope.Profiler.from_args(megatron(record_memory_history=True)).config
    assert config.memory_history
    assert config.memory_snapshot_at_end


@pytest.mark.parametrize(
    ("options", "recorded"),
    [
        ({"start_step": 4}, range(4, 7)),
        ({"end_step": 9}, range(6, 9)),
        ({"end_step": 2}, range(2)),
        ({"start_step": 4, "end_step": 5}, range(4, 5)),
    ],
)
def test_start_and_end_in_our_own_words(options, recorded, monkeypatch):
    for name, value in options.items():
        monkeypatch.setenv(f"STEPSCOPE_{name.upper()}", str(value))
    import argparse

    parser = stepscope.add_arguments(argparse.ArgumentParser())
    config = stepscope.Profiler.from_args(parser.parse_args(["--profile"])).config
    assert config.schedule.recorded_steps(0) == recorded
    assert config.repeat == 1
