"""The schedule against the guides' own examples and against torch.profiler.schedule."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.profiler import ProfilerAction
from torch.profiler import schedule as torch_schedule

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.schedule import Action, Schedule

TORCH_ACTION = {
    Action.NONE: ProfilerAction.NONE,
    Action.WARMUP: ProfilerAction.WARMUP,
    Action.RECORD: ProfilerAction.RECORD,
    Action.RECORD_AND_SAVE: ProfilerAction.RECORD_AND_SAVE,
}

numbers = st.integers(0, 6)


def recorded(schedule: Schedule, steps: int) -> list[int]:
    kinds = (Action.RECORD, Action.RECORD_AND_SAVE)
    return [step for step in range(steps) if schedule.action(step) in kinds]


@pytest.mark.parametrize(
    ("options", "steps", "expected"),
    [
        pytest.param(
            {"repeat": 0, "cycle_length": 10, "warmup": 2, "active": 1, "wait": 99},
            40,
            [9, 19, 29, 39],
            id="cycle of 10 with warmup 2 and active 1 waits 7",
        ),
        pytest.param({"wait": 1, "warmup": 1, "active": 1, "repeat": 1}, 20, [2], id="1/1/1 once"),
        pytest.param(
            {"wait": 5, "warmup": 1, "active": 3, "repeat": 2, "skip_first": 10},
            60,
            [16, 17, 18, 25, 26, 27],
            id="5/1/3 twice after 10",
        ),
        pytest.param(
            {"wait": 0, "warmup": 1, "active": 1, "repeat": 1, "skip_first": 1},
            20,
            [2],
            id="0/1/1 once after 1",
        ),
        pytest.param(
            {"wait": 5, "warmup": 2, "active": 3, "repeat": 1}, 40, [7, 8, 9], id="5/2/3 once"
        ),
        pytest.param(
            {"wait": 1, "warmup": 1, "active": 5, "repeat": 0},
            14,
            [2, 3, 4, 5, 6, 9, 10, 11, 12, 13],
            id="1/1/5 for ever",
        ),
        pytest.param(
            {"wait": 0, "warmup": 0, "active": 1, "repeat": 3}, 9, [0, 1, 2], id="every step thrice"
        ),
    ],
)
def test_examples_of_the_guides(options, steps, expected):
    assert recorded(CaptureConfig(**options).schedule, steps) == expected


def test_cycle_length_decides_wait_only_without_an_end():
    endless = CaptureConfig(repeat=0, cycle_length=10, warmup=2, active=1, wait=3)
    assert endless.wait == 7
    assert endless.schedule.cycle == 10
    assert CaptureConfig(repeat=2, cycle_length=10, warmup=2, active=1, wait=3).wait == 3
    assert CaptureConfig(repeat=0, cycle_length=3, warmup=2, active=1).wait == 0


@pytest.mark.parametrize(
    ("max_steps", "expected"), [(-1, -1), (1, 8), (7, 8), (8, 8), (9, 9), (100, 100)]
)
def test_max_steps_is_raised_to_one_full_cycle(max_steps, expected):
    config = CaptureConfig(skip_first=1, wait=4, warmup=2, active=1, max_steps=max_steps)
    assert config.max_steps == expected


def test_max_steps_stays_if_nothing_is_recorded():
    config = CaptureConfig(enabled=False, wait=7, warmup=2, active=1, max_steps=3)
    assert config.max_steps == 3


def test_max_steps_follows_the_wait_that_cycle_length_gives():
    config = CaptureConfig(repeat=0, cycle_length=10, warmup=2, active=1, wait=0, max_steps=4)
    assert config.max_steps == 10


@given(
    skip_first=numbers,
    wait=numbers,
    warmup=numbers,
    active=st.integers(1, 6),
    repeat=st.integers(0, 4),
    skips_first_wait=st.booleans(),
)
def test_agrees_with_torch_in_every_step(
    skip_first, wait, warmup, active, repeat, skips_first_wait
):
    schedule = Schedule(skip_first, wait, warmup, active, repeat, skips_first_wait)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Profiler won't be using warmup")
        theirs = torch_schedule(
            wait=wait,
            warmup=warmup,
            active=active,
            repeat=repeat,
            skip_first=skip_first,
            skip_first_wait=int(skips_first_wait),
        )
    for step in range(skip_first + 5 * (wait + warmup + active) + 3):
        assert TORCH_ACTION[schedule.action(step)] is theirs(step), step


@given(
    skip_first=numbers,
    wait=numbers,
    warmup=numbers,
    active=st.integers(1, 6),
    repeat=st.integers(0, 4),
    skips_first_wait=st.booleans(),
)
def test_windows_partition_the_recorded_steps(
    skip_first, wait, warmup, active, repeat, skips_first_wait
):
    schedule = Schedule(skip_first, wait, warmup, active, repeat, skips_first_wait)
    horizon = skip_first + 5 * schedule.cycle
    by_window: dict[int, list[int]] = {}
    for step in recorded(schedule, horizon):
        window = schedule.window(step)
        assert window is not None
        by_window.setdefault(window, []).append(step)
    assert sorted(by_window) == list(range(repeat or 5))[: len(by_window)]
    for window, steps in by_window.items():
        assert steps == list(schedule.recorded_steps(window))
    assert schedule.first_end() == schedule.recorded_steps(0).stop
    if repeat:
        assert len(recorded(schedule, horizon)) == min(repeat, 5) * active


@given(
    skip_first=numbers,
    wait=numbers,
    warmup=numbers,
    active=st.integers(1, 6),
    repeat=st.integers(0, 4),
    skips_first_wait=st.booleans(),
    first=st.integers(0, 60),
)
def test_the_first_quiet_step(skip_first, wait, warmup, active, repeat, skips_first_wait, first):
    schedule = Schedule(skip_first, wait, warmup, active, repeat, skips_first_wait)
    found = schedule.first_quiet_step(first)
    assert found >= first
    if schedule.action(found) is not Action.NONE:
        # There is none at all, so that the first is as good as any.
        assert found == first
        horizon = range(first, first + skip_first + 6 * schedule.cycle)
        assert all(schedule.action(step) is not Action.NONE for step in horizon)
    else:
        assert all(schedule.action(step) is not Action.NONE for step in range(first, found))


@given(
    skip_first=numbers,
    wait=numbers,
    warmup=numbers,
    active=st.integers(1, 6),
    repeat=st.integers(0, 4),
    first=st.integers(5, 60),
    steps=st.integers(1, 8),
    own_warmup=st.integers(0, 3),
)
def test_room_for_another_window(
    skip_first, wait, warmup, active, repeat, first, steps, own_warmup
):
    schedule = Schedule(skip_first, wait, warmup, active, repeat)

    def is_free(start):
        wanted = range(start - own_warmup, start + steps)
        return all(schedule.action(step) is Action.NONE for step in wanted)

    found = schedule.free_step(first, steps, own_warmup)
    assert found >= first
    horizon = range(first, max(first, schedule.first_end()) + schedule.cycle + 1)
    free = [start for start in horizon if is_free(start)]
    assert found == (free[0] if free else first)
