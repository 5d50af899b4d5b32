"""The ratio of two sides' steps: what it covers, and how often its interval holds the truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.comparison.repeated_runs import student_95
from stepscope.run.step_record import StepRecord
from stepscope.trial.measure import ProcessSteps, ratio_of, steps_of

WARM_UP = 4


def record(durations_ns):
    starts = np.cumsum([0, *durations_ns])
    return [
        StepRecord(step, int(start), int(dur))
        for step, (start, dur) in enumerate(zip(starts, durations_ns, strict=False))
    ]


def process(rng, mean_ns, between, within, steps=30):
    own = mean_ns * (1 + between * rng.standard_normal())
    return steps_of(record((own * (1 + within * rng.standard_normal(steps))).astype(int)), 0)


def test_warm_up_and_a_single_stall_do_not_count():
    found = steps_of(record([900] * WARM_UP + [100] * 12 + [5000] + [100] * 12), WARM_UP)
    assert found.mean_ns == 100
    assert found.steps == 24
    assert found.error_ns == 0


def test_an_epoch_that_begins_where_the_warm_up_ends_counts():
    epochs = record(([500] + [100] * 7) * 5)
    starts = [replace(one, data_wait_ns=400) if one.dur_ns == 500 else one for one in epochs]
    found = steps_of(starts, 8)
    assert (found.steps, found.mean_ns) == (32, 150)


@pytest.mark.parametrize("steps", [0, WARM_UP, WARM_UP + 5])
def test_too_few_steps_are_no_measurement(steps):
    assert steps_of(record([100] * steps), WARM_UP) is None


def test_steps_that_depend_on_their_neighbours_make_the_mean_less_certain():
    # The same durations: in turns, and one after the other.
    alternation = steps_of(record([100, 140] * 15), 0)
    in_rows = steps_of(record([100] * 15 + [140] * 15), 0)
    assert alternation.mean_ns == in_rows.mean_ns == 120
    assert alternation.error_ns < in_rows.error_ns / 4


STEPS = st.builds(
    ProcessSteps,
    mean_ns=st.floats(1e5, 1e9),
    error_ns=st.floats(0, 1e4),
    steps=st.just(30),
    blocks=st.integers(2, 6),
)
SIDES = st.lists(STEPS, min_size=1, max_size=5)


@given(SIDES, SIDES)
def test_the_interval_holds_the_ratio_and_turns_over_with_it(after, before):
    there, back = ratio_of(after, before), ratio_of(before, after)
    assert there.low <= there.value <= there.high
    assert there.value * back.value == pytest.approx(1)
    assert there.low * back.high == pytest.approx(1)


@given(SIDES)
def test_a_side_against_itself_is_no_change(side):
    ratio = ratio_of(side, side)
    assert ratio.value == 1
    assert ratio.low <= 1 <= ratio.high


def test_processes_that_agree_by_chance_are_not_taken_for_certain():
    alike = [ProcessSteps(100.0, 5.0, 30, 6), ProcessSteps(100.0, 5.0, 30, 6)]
    ratio = ratio_of(alike, alike)
    assert ratio.high - ratio.low > 0.1


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("processes", "between"),
    [(1, 0.0), (2, 0.03), (4, 0.1)],
)
def test_the_interval_holds_the_true_ratio_as_often_as_it_says(processes, between):
    """By simulation: 95% with a margin for the simulation itself; it may hold it more often."""
    rng = np.random.default_rng(7)
    rounds, hits = 150, 0
    for _ in range(rounds):
        before = [process(rng, 1e8, between, 0.1) for _ in range(processes)]
        after = [process(rng, 0.7e8, between, 0.1) for _ in range(processes)]
        ratio = ratio_of(after, before)
        hits += ratio.low <= 0.7 <= ratio.high
    assert hits / rounds > 0.91


def test_students_t_against_the_tables():
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042}
    for freedom, value in table.items():
        assert student_95(freedom) == pytest.approx(value, rel=0.01)
    values = [student_95(freedom) for freedom in np.arange(1, 8, 0.1)]
    assert all(math.isfinite(value) for value in values)
    assert (np.diff(values) < 0).all()
