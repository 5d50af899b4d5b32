"""How times change over the steps: every Nth, from step to step, or since one step."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.skew.course import (
    EveryNth,
    FromOneStep,
    InSomeSteps,
    Rising,
    _by_chance,
    course_of,
    in_some_steps,
)

MS = 1_000_000
LEAST_NS = 2 * MS


def course(times_ms, steps=None):
    times = [round(MS * ms) for ms in times_ms]
    return course_of(list(steps or range(len(times))), times, LEAST_NS)


@given(
    every=st.integers(2, 12),
    times=st.integers(6, 12),
    beginning=st.integers(0, 11),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=settings.default.max_examples)
def test_the_distance_is_found_whatever_the_noise_and_the_outliers(every, times, beginning, seed):
    chance = random.Random(seed)
    count = max(24, every * times)
    steps = list(range(7, 7 + count))
    due = [step % every == beginning % every for step in steps]
    noisy = [chance.expovariate(1 / 2) + 60 * is_due for is_due in due]
    noisy[chance.randrange(count)] += 500
    found = course(noisy, steps)
    assert isinstance(found, EveryNth)
    assert found.every == every
    assert {step % every for step in found.steps} == {beginning % every}
    assert found.long_ns > 50 * MS > found.others_ns


def test_missing_steps_do_not_hide_the_distance():
    steps = [step for step in range(60) if step not in range(20, 28)]
    found = course([40 if step % 5 == 2 else 1 for step in steps], steps)
    assert isinstance(found, EveryNth)
    assert (
        found.evidence
        == "in every 5th step (2, 7, 12, 17, 32, …): 40.0 ms in these, 1.00 ms in others"
    )


def test_of_every_second_step_nobody_knows_the_distance():
    steps = range(0, 120, 2)
    assert course([40 if step % 6 == 0 else 1 for step in steps], steps) is None


@pytest.mark.parametrize("count", [3, 6, 9, 12])
def test_few_regular_steps_may_be_chance(count):
    assert course([40 if step % 3 == 1 else 1 for step in range(count)]) is None


@pytest.mark.parametrize(("count", "long_steps", "every"), [(12, 4, 3), (13, 4, 3), (12, 3, 4)])
def test_the_probability_of_a_distance_is_counted_on_all_cases(count, long_steps, every):
    """All ways to put the long steps: how many lie as regularly. A bound: some count twice."""
    dues = [
        frozenset(range(beginning, count, distance))
        for distance in range(2, count // 3 + 1)
        for beginning in range(distance)
    ]
    assert frozenset(range(1, count, every)) in dues
    for wrong in (0, 1, 2):
        ways = [frozenset(one) for one in combinations(range(count), long_steps)]
        each = sum(len(due ^ one) <= wrong for due in dues for one in ways)
        any_of = sum(any(len(due ^ one) <= wrong for due in dues) for one in ways)
        assert _by_chance(count, long_steps, wrong) == pytest.approx(each / len(ways))
        assert _by_chance(count, long_steps, wrong) >= any_of / len(ways) - 1e-12


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(lambda chance: chance.gauss(20, 8), id="normal"),
        pytest.param(lambda chance: chance.expovariate(1 / 10), id="long tail"),
        pytest.param(lambda chance: (chance.random() < 0.3) * 60 + chance.random(), id="two kinds"),
    ],
)
@pytest.mark.parametrize("count", [8, 24, 60])
def test_chance_has_no_course(draw, count):
    seen = 0
    for seed in range(100):
        chance = random.Random(seed)
        seen += course([max(0, draw(chance)) for _ in range(count)]) is not None
    assert seen <= 2


@given(
    count=st.integers(16, 80),
    first=st.floats(0, 5),
    rise=st.floats(20, 200),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=settings.default.max_examples)
def test_what_grows_is_told_with_its_slope_despite_an_outlier(count, first, rise, seed):
    chance = random.Random(seed)
    slope = rise / (count - 1)
    times = [first + slope * step + chance.uniform(0, rise / 20) for step in range(count)]
    times[chance.randrange(count)] += 1000
    found = course(times)
    assert isinstance(found, Rising)
    assert found.per_step_ns == pytest.approx(slope * MS, rel=0.15)
    assert found.first_ns < found.last_ns


@given(count=st.integers(48, 80), seed=st.integers(0, 10**6))
@settings(max_examples=settings.default.max_examples)
def test_a_second_level_is_no_slope(count, seed):
    chance = random.Random(seed)
    at = chance.randint(count // 3, 2 * count // 3)
    times = [(30 if step >= at else 4) + chance.uniform(0, 3) for step in range(count)]
    found = course(times)
    assert isinstance(found, FromOneStep)
    assert abs(found.step - at) <= 1
    assert found.before_ns < 8 * MS
    assert found.after_ns > 29 * MS


@pytest.mark.parametrize(
    "times",
    [
        pytest.param([20.0] * 30, id="constant"),
        pytest.param([20 + 0.1 * step for step in range(30)], id="hardly"),
        pytest.param([40 - step for step in range(30)], id="shrinking"),
        pytest.param([1, 10, 20, 30, 40], id="five steps"),
        pytest.param([], id="none"),
        pytest.param([5.0], id="one"),
    ],
)
def test_what_does_not_grow_notably_says_nothing(times):
    assert course(times) is None


def test_long_records_are_looked_at_in_blocks():
    outliers = random.Random(3).sample(range(2000), 20)
    times = [2 + step / 50 + (300 if step in outliers else 0) for step in range(2000)]
    found = course(times)
    assert isinstance(found, Rising)
    assert found.per_step_ns == pytest.approx(MS / 50, rel=0.02)


def test_what_costs_more_is_told_of_two():
    rare = [5 + step + (400 if step % 40 == 7 else 0) for step in range(160)]
    assert isinstance(course(rare), Rising)
    often = [5 + step / 20 + (40 if step % 4 == 1 else 0) for step in range(160)]
    found = course(often)
    assert isinstance(found, EveryNth)
    assert not found.only or found.text == "in every 4th step"


def test_few_steps_with_nearly_all_are_named():
    found = in_some_steps(range(12), [12 * MS if step % 3 == 1 else 0 for step in range(12)])
    assert found == InSomeSteps((1, 4, 7, 10), 12)
    assert found.evidence == "in 4 of 12 steps: 1, 4, 7, 10"


@pytest.mark.parametrize("times", [[5] * 12, [0] * 12, [5, 0], [5, 5, 5, 0, 0, 0]])
def test_no_few_steps_are_named_where_many_have_it_or_none(times):
    assert in_some_steps(range(len(times)), times) is None
