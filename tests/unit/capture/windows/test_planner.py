"""When a window begins, and when nothing needs to be looked at: against a look at every step."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.options.schedule import NEVER, Action, Schedule
from stepscope.capture.ranks import RankIdentity
from stepscope.capture.windows.planner import WindowPlanner
from stepscope.run.layout import RankLayout
from stepscope.run.triggers import Trigger

STEPS = 120
SCHEDULES = st.builds(
    Schedule,
    skip_first=st.integers(0, 20),
    wait=st.integers(0, 9),
    warmup=st.integers(0, 3),
    active=st.integers(1, 4),
    repeat=st.integers(0, 4),
    skips_first_wait=st.booleans(),
)


def first_of(steps, is_it):
    return next((step for step in steps if is_it(step)), NEVER)


@given(SCHEDULES, st.integers(0, 60))
def test_the_next_step_with_something_to_do_is_the_first_that_a_look_at_each_finds(schedule, step):
    steps = range(step, 500)
    acts = first_of(steps, lambda one: schedule.action(one) is not Action.NONE)
    saves = first_of(steps, lambda one: schedule.action(one) is Action.RECORD_AND_SAVE)
    assert schedule.next_action(step) == acts
    assert schedule.next_save(step) == saves


def planner_of(schedule, rank):
    config = CaptureConfig(
        skip_first=schedule.skip_first,
        wait=schedule.wait,
        warmup=schedule.warmup,
        active=schedule.active,
        repeat=schedule.repeat,
        ranks="0",
    )
    notes = []
    identity = RankIdentity(rank, rank, 2)
    planner = WindowPlanner(
        config, RankLayout(Path("run")), identity, lambda plan, *_: notes.append(plan)
    )
    return planner, notes


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 80),
        st.builds(
            Trigger,
            cause=st.just("code"),
            steps=st.integers(1, 4),
            first_step=st.none() | st.integers(0, 100),
            ranks=st.sampled_from(["", "0", "1"]),
        ),
    ),
    max_size=4,
)


@pytest.mark.parametrize("rank", [0, 1])
@given(SCHEDULES, REQUESTS)
def test_looking_only_when_something_is_due_finds_what_looking_at_each_step_does(
    rank, schedule, requests
):
    """The same windows, and the same waits for others, as where each step asks the planner."""
    found = []
    for is_lazy in (False, True):
        planner, notes = planner_of(schedule, rank)
        due, seen = 0, []
        for step in range(STEPS):
            for asked, request in requests:
                if asked == step:
                    planner.request(request)
                    due = 0
            if is_lazy and step < due:
                continue
            if step:
                others = planner.others_window(step - 1)
                if others is not None:
                    seen.append((step, "others", others))
            plan = planner.next_plan(step)
            if plan is not None:
                seen.append((step, plan.index, plan.first_step, plan.steps))
            due = planner.next_due(step + 1)
        found.append((seen, [plan.index for plan in notes]))
    assert found[0] == found[1]
