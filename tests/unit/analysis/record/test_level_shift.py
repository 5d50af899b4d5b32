"""A change of level is found where it is, and noise, drifts and single stalls are none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.step_records import MS, step_records

from stepscope.analysis.record.step_patterns import LevelShift, find_level_shift


def shift_of(durations: np.ndarray) -> LevelShift | None:
    return find_level_shift(step_records(np.maximum(durations, 0.01).tolist()))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(10, 100),
    st.integers(10, 100),
    st.floats(1.3, 4),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_a_change_is_found_where_it_is(before, after, ratio, becomes_slower, seed):
    if min(before, after) < 0.1 * (before + after):
        return
    rng = np.random.default_rng(seed)
    levels = (100, 100 * ratio) if becomes_slower else (100 * ratio, 100)
    durations = np.repeat(levels, [before, after]) * rng.normal(1, 0.02, before + after)
    found = shift_of(durations)
    assert found is not None
    assert found.step == before
    assert found.before_ns == pytest.approx(levels[0] * MS, rel=0.03)
    assert found.after_ns == pytest.approx(levels[1] * MS, rel=0.03)


def _like_their_neighbours(rng: np.random.Generator, number: int) -> np.ndarray:
    steps = [rng.normal(0, 3)]
    for noise in rng.normal(0, 1.3, number - 1):
        steps.append(0.9 * steps[-1] + noise)
    return 100 + np.array(steps)


NONE_OF_THESE = {
    "noise": lambda rng, n: rng.normal(100, 15, n),
    "wide noise": lambda rng, n: 100 * np.exp(rng.normal(0, 0.5, n)),
    "two kinds": lambda rng, n: np.where(rng.random(n) < 0.4, 160, 100) + rng.normal(0, 1, n),
    "in turn": lambda rng, n: np.where(np.arange(n) % 2, 160, 100) + rng.normal(0, 1, n),
    "every tenth": lambda rng, n: np.where(np.arange(n) % 10, 100, 400) + rng.normal(0, 1, n),
    "like their neighbours": _like_their_neighbours,
    "drift": lambda rng, n: np.linspace(100, 200, n) + rng.normal(0, 1, n),
    "one stall": lambda rng, n: np.where(np.arange(n) == n // 2, 4000, 100) + rng.normal(0, 1, n),
    "no change": lambda rng, n: np.full(n, 100.0),
}


@pytest.mark.parametrize("kind", NONE_OF_THESE)
def test_what_is_no_change_of_level(kind):
    rng = np.random.default_rng(1)
    for number in (1, 2, 15, 20, 21, 60, 300):
        for _ in range(20):
            assert shift_of(NONE_OF_THESE[kind](rng, number)) is None


def test_few_other_steps_are_no_level():
    rng = np.random.default_rng(2)
    durations = np.repeat([100.0, 200.0], [100, 9]) + rng.normal(0, 1, 109)
    assert shift_of(durations) is None
