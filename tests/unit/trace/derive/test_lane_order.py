"""Rows by lane and start: the compiled way against sorting by columns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.derive import lane_order
from stepscope.trace.derive.lane_order import (
    keys_by_loop,
    order_with_few_copies,
    settle_by_loop,
)

EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(-5, 5), st.integers(0, 2), st.integers(0, 2), st.booleans()
    ),
    min_size=1,
    max_size=20,
)


def columns(events):
    kinds = (np.uint32, np.int64, np.int64, np.int8)
    lanes, starts, durations, rank = (
        np.array([event[place] for event in events], kind) for place, kind in enumerate(kinds)
    )
    rows = np.nonzero(np.array([event[4] for event in events]))[0].astype(np.int32)
    return rows, lanes, starts, durations, rank


@given(EVENTS)
def test_order_is_by_lane_start_length_rank_and_place(events):
    rows, lanes, starts, durations, rank = columns(events)
    expected = sorted(
        rows.tolist(), key=lambda row: (lanes[row], starts[row], -durations[row], rank[row], row)
    )
    keys, found = np.empty(len(rows), np.int64), np.empty(len(rows), np.int32)
    is_first = np.empty(len(rows), np.bool_)
    keys_by_loop(rows, lanes, starts, -5, 11, keys)
    order = np.argsort(keys, kind="stable")
    assert settle_by_loop(rows, lanes, durations, rank, keys, 400, order, found, is_first)
    assert found.tolist() == expected
    lane = lanes[expected].tolist()
    assert is_first.tolist() == [at == 0 or lane[at] != lane[at - 1] for at in range(len(lane))]


def test_the_compiled_loops_agree(monkeypatch):
    random = np.random.default_rng(2)
    drawn = (random.integers(0, most, 4000).tolist() for most in (3, 1500, 3, 3, 2))
    given_columns = columns(list(zip(*drawn, strict=True)))
    found = order_with_few_copies(*given_columns)
    monkeypatch.setattr(lane_order, "jit", lambda loop: loop)
    plain = order_with_few_copies(*given_columns)
    assert found is not None
    assert plain is not None
    for one, other in zip(found, plain, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    ("starts", "durations"),
    [
        (np.array([0, 2**62]), np.array([1, 1])),  # lane and time do not fit one number
        (np.zeros(500, np.int64), np.arange(500)),  # all together, and in the wrong order
    ],
)
def test_what_takes_too_long_or_too_much_room_is_left_to_others(starts, durations):
    rows = np.arange(len(starts), dtype=np.int32)
    lanes, rank = np.ones(len(starts), np.uint32), np.zeros(len(starts), np.int8)
    assert order_with_few_copies(rows, lanes, starts, durations, rank) is None
