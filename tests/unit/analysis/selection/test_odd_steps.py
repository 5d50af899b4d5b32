"""Slow steps at the beginning, against their definition taken word by word."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analysis.selection.odd_steps import START_UP_FACTOR, slow_first_steps


@given(st.lists(st.integers(0, 12) | st.integers(0, 10**6), max_size=24))
def test_the_steps_at_the_beginning_are_all_slower_than_the_others(durations):
    """At most half of them, each more than twice the median of those that remain."""
    expected = max(
        (
            count
            for count in range(1, len(durations) // 2 + 1)
            if min(durations[:count]) > START_UP_FACTOR * np.median(durations[count:])
        ),
        default=0,
    )
    waits = np.zeros(len(durations), np.int64)
    assert slow_first_steps(np.array(durations, np.int64), waits) == expected
