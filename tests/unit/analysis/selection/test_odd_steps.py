"""Slow steps at the beginning, against their definition taken word by word."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.selection.outlier_steps import (
    FIRST_FACTOR,
    START_UP_FACTOR,
    rounds_of_work,
    slow_first_steps,
)


@given(st.lists(st.integers(0, 12) | st.integers(0, 10**6), max_size=24))
def test_the_steps_at_the_beginning_are_all_slower_than_the_others(durations):
    """At most half of them, each more than twice the median of those that remain.

    None if a later step is as slow as their slowest, but for a quarter. Else the first alone, if
    four others are all shorter by a quarter of their longest.
    """
    expected = max(
        (
            count
            for count in range(1, len(durations) // 2 + 1)
            if min(durations[:count]) > START_UP_FACTOR * np.median(durations[count:])
        ),
        default=0,
    )
    if expected and max(durations[:expected]) <= FIRST_FACTOR * max(durations[expected:]):
        expected = 0
    if not expected and len(durations) >= 5:
        expected = int(durations[0] > FIRST_FACTOR * max(durations[1:]))
    waits = np.zeros(len(durations), np.int64)
    assert slow_first_steps(np.array(durations, np.int64), waits) == expected


def first_steps(*durations):
    return slow_first_steps(np.array(durations), np.zeros(len(durations), np.int64))


def test_a_first_step_beyond_all_others_is_start_up():
    """As in a trace whose first copy takes 43 ms, while the recorder starts."""
    assert first_steps(170, 123, 123, 119, 120, 122) == 1


def test_a_first_step_like_another_is_none_and_few_others_do_not_tell():
    assert first_steps(182, 126, 127, 123, 164, 124) == 0
    assert first_steps(170, 123, 123, 119) == 0


def test_slow_steps_that_come_again_are_no_start_up():
    """As where each epoch of four steps begins with the start of its workers."""
    assert first_steps(116, 32, 32, 32, 115, 32, 32, 32) == 0


@given(
    st.lists(st.integers(10_000, 1_000_000), min_size=1, max_size=5),
    st.integers(2, 6),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
def test_work_that_comes_again_is_found_whatever_part_of_a_round_is_left(
    of_round, rounds, more, dice
):
    times = (of_round * (rounds + 1))[: len(of_round) * rounds + min(more, len(of_round) - 1)]
    found = rounds_of_work(np.array([time + dice.randint(0, 100) for time in times]))
    shortest = next(
        length
        for length in range(1, len(of_round) + 1)
        if all(abs(a - b) <= 0.05 * max(times) for a, b in zip(times, times[length:], strict=False))
    )
    if max(times) > 1.3 * min(times):
        assert 2 <= found <= max(2, shortest)
    if max(times) < 1.2 * min(times):
        assert found == 1


def test_one_slow_step_or_one_round_is_no_work_that_comes_again():
    assert rounds_of_work(np.array([30, 10, 10, 10, 10, 10])) == 1
    assert rounds_of_work(np.array([30, 10, 10])) == 1
    assert rounds_of_work(np.array([30, 10, 30, 10, 30])) == 2
    assert rounds_of_work(np.array([10, 30, 10, 10, 30, 10])) == 3
    assert rounds_of_work(np.zeros(0, np.int64)) == 1
    assert rounds_of_work(np.array([10, 11, 10, 11])) == 1
