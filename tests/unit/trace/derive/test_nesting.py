"""Nesting against the definition, tried on every pair of events."""

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.counted import counted

from stepscope.trace.derive import nesting
from stepscope.trace.derive.ancestors import nearest_above
from stepscope.trace.derive.clock_resolution import clock_resolution_ns
from stepscope.trace.derive.nesting import (
    nest,
)

FIELDS = ("parent", "depth", "self_ns", "crossing")
EVENTS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 14), st.integers(0, 14)), max_size=14)


def nest_by_python(*columns, **how):
    """`nest` with its loop as Python."""
    with patch.object(nesting, "jit", lambda loop: loop):
        return nest(*columns, **how)


def order_of(events):
    return sorted(range(len(events)), key=lambda i: (events[i][0], events[i][1], -events[i][2], i))


def by_definition(events, tolerance):
    """Parent, depth, self time and crossing, straight from the docstring."""
    order = order_of(events)
    place = {row: n for n, row in enumerate(order)}

    def contains(outer, inner):
        (lane, start, dur), (lane_2, start_2, dur_2) = events[outer], events[inner]
        return (
            lane == lane_2
            and place[outer] < place[inner]
            and dur > 0
            and start_2 < start + dur
            and start_2 + dur_2 <= start + dur + tolerance
        )

    rows = range(len(events))
    parent = []
    for row in rows:
        around = [other for other in rows if contains(other, row)]
        parent.append(max(around, key=place.__getitem__) if around else -1)
    depth = []
    for row in rows:
        steps, at = 0, row
        while parent[at] >= 0:
            at, steps = parent[at], steps + 1
        depth.append(steps)
    self_ns = []
    for row in rows:
        _, start, dur = events[row]
        mine = set(range(start, start + dur))
        for child in rows:
            if parent[child] == row:
                mine -= set(range(events[child][1], events[child][1] + events[child][2]))
        self_ns.append(len(mine))
    crossing = []
    for row in rows:
        lane, start, _ = events[row]
        low = place[parent[row]] if parent[row] >= 0 else -1
        crossing.append(
            any(
                events[o][0] == lane and low < place[o] < place[row] and sum(events[o][1:]) > start
                for o in rows
            )
        )
    return parent, depth, self_ns, crossing


def columns(events):
    return (np.array([e[k] for e in events], np.int64) for k in range(3))


@settings(max_examples=4 * settings.default.max_examples)
@given(EVENTS, st.integers(0, 2))
@example([(0, 0, 10), (0, 5, 10), (0, 6, 2), (0, 11, 2)], 0)
@example([(0, 3, 0), (0, 3, 0), (0, 3, 2)], 0)
def test_nesting_follows_the_definition(events, tolerance):
    expected = by_definition(events, tolerance)
    lane, start, dur = columns(events)
    found = nest(lane, start, dur, tolerance_ns=tolerance)
    assert found.parent.tolist() == expected[0]
    assert found.depth.tolist() == expected[1]
    assert found.self_ns.tolist() == expected[2]
    assert found.crossing.tolist() == expected[3]

    looped = nest_by_python(lane, start, dur, tolerance_ns=tolerance)
    assert [getattr(looped, field).tolist() for field in FIELDS] == list(expected)


@given(EVENTS, st.lists(st.booleans(), min_size=14, max_size=14))
def test_the_nearest_chosen_row_above_is_found_with_the_parents(events, draw):
    lane, start, dur = columns(events)
    parent, *_ = by_definition(events, 0)
    chosen = np.array(draw[: len(events)], np.bool_)
    expected = []
    for row in range(len(events)):
        at = parent[row]
        while at >= 0 and not chosen[at]:
            at = parent[at]
        expected.append(at)
    looped = nest_by_python(lane, start, dur, chosen=chosen)
    assert looped.around.tolist() == expected
    assert looped.parent.tolist() == parent


def test_more_rows_than_32_bits_number_are_refused(monkeypatch):
    monkeypatch.setattr(nesting, "MOST_ROWS", 1)
    with pytest.raises(OverflowError, match="more than 1 events"):
        nest(*columns([(0, 0, 9), (0, 1, 2)]))


@given(EVENTS, st.randoms())
def test_events_that_are_not_nested_are_roots(events, random):
    rows = [row for row in range(len(events)) if random.random() < 0.7]
    lane, start, dur = columns(events)
    found = nest(lane, start, dur, rows=np.array(rows, np.int64))
    alone = nest(lane[rows], start[rows], dur[rows])
    parent = np.full(len(events), -1)
    parent[rows] = np.where(alone.parent >= 0, np.array(rows, np.int64)[alone.parent], -1)
    assert found.parent.tolist() == parent.tolist()
    for field, otherwise in (("depth", 0), ("self_ns", dur), ("crossing", False)):
        expected = np.zeros(len(events), np.int64) + otherwise
        expected[rows] = getattr(alone, field)
        assert getattr(found, field).tolist() == expected.tolist()


def test_self_times_of_a_lane_that_nests_add_up():
    events = [(0, 0, 100), (0, 10, 30), (0, 15, 5), (0, 50, 50), (0, 120, 7)]
    found = nest(*columns(events))
    assert found.self_ns.sum() == 107
    assert not found.crossing.any()


def test_rank_decides_between_equal_spans():
    lane, start, dur = columns([(0, 0, 9), (0, 0, 9)])
    assert nest(lane, start, dur).parent.tolist() == [-1, 0]
    assert nest(lane, start, dur, rank=np.array([2, 1])).parent.tolist() == [1, -1]


def test_children_may_outlive_their_parent_by_the_rounding():
    lane, start, dur = columns([(0, 10_000, 9_000), (0, 11_000, 9_000)])
    tolerance = clock_resolution_ns(start)
    assert tolerance == 1000
    found = nest(lane, start, dur, tolerance_ns=tolerance)
    assert found.parent.tolist() == [-1, 0]
    assert found.self_ns.tolist() == [1_000, 9_000]


def test_ten_thousand_crossing_events_stay_linear():
    size = 10_000
    start = np.arange(size, dtype=np.int64)
    dur = np.full(size, size, np.int64)
    found = nest(np.zeros(size, np.int64), start, dur)
    assert (found.parent == -1).all()
    assert found.crossing[1:].all()


def test_times_too_far_apart_for_one_sort_key():
    far = 2**61
    lane, start, dur = columns([(1, far, 9), (0, 0, 9), (0, 0, 12), (1, far, 20), (0, 3, 2)])
    found = nest(lane, start, dur)
    assert found.parent.tolist() == [3, 2, -1, -1, 1]
    assert found.self_ns.tolist() == [9, 7, 3, 11, 2]


def test_deep_stacks_with_many_rows_after_them():
    deep, flat = 2_000, 2_000
    start = np.concatenate((np.arange(deep), 10**6 + 10 * np.arange(flat)))
    dur = np.concatenate((2 * (deep - np.arange(deep)), np.full(flat, 5)))
    lane = np.zeros(deep + flat, np.int64)
    found = nest(lane, start, dur)
    assert found.depth.tolist() == [*range(deep), *([0] * flat)]
    read = []
    for number in (1_000, 8_000):
        start = np.concatenate((np.arange(number), 10**6 + 10 * np.arange(number)))
        dur = np.concatenate((2 * (number - np.arange(number)), np.full(number, 5)))
        durations, count = counted(dur)
        nest_by_python(np.zeros(2 * number, np.int64), start, durations)
        read.append(count())
    assert 0 < read[1] < 10 * read[0]


@given(EVENTS, st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30)), max_size=5))
def test_the_innermost_event_at_a_moment(events, moments):
    lane, start, dur = columns(events)
    order = order_of(events)
    expected = []
    for where, at in moments:
        around = [r for r in order if lane[r] == where and start[r] <= at < start[r] + dur[r]]
        expected.append(around[-1] if around else -1)
    lanes = np.array([where for where, _ in moments], np.int64)
    times = np.array([at for _, at in moments], np.int64)
    assert nesting.innermost_at(lane, start, start + dur, lanes, times).tolist() == expected


def test_the_nearest_chosen_rows_are_those_of_the_parents():
    random = np.random.default_rng(7)
    size = 5_000
    lane = random.integers(0, 3, size).astype(np.uint32)
    start, dur = random.integers(0, 3000, size), random.integers(0, 40, size)
    rank = random.integers(0, 3, size).astype(np.int8)
    rows = np.nonzero(random.random(size) < 0.8)[0]
    chosen = random.random(size) < 0.3
    found = nest(lane, start, dur, rank, rows=rows, chosen=chosen)
    assert found.parent.dtype == np.int32
    assert np.array_equal(found.around, nearest_above(found.parent, np.arange(size), chosen))
