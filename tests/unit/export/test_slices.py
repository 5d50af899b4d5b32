"""Slices on tracks: every slice once, nested, in the order of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.export.slices import mark

SLICES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 25)), min_size=0, max_size=60
)


def columns(slices):
    if not slices:
        return (np.zeros(0, np.int64),) * 3
    return tuple(np.array(column, np.int64) for column in zip(*slices, strict=True))


def replayed(marks, start, dur):
    """Replay the marks of each track with a stack, and return the slices that ended."""
    found = []
    for track in range(len(marks.lane)):
        mine = np.flatnonzero(marks.track == track)
        assert (np.diff(mine) == 1).all(), "the marks of a track follow one another"
        times = marks.time_ns[mine]
        assert (np.diff(times) >= 0).all()
        stack = []
        for at in mine:
            row = int(marks.slice[at])
            if marks.is_begin[at]:
                assert (
                    not stack or marks.time_ns[at] + dur[row] <= start[stack[-1]] + dur[stack[-1]]
                )
                stack.append(row)
                assert marks.time_ns[at] == start[row]
            else:
                assert stack.pop() == row
                assert marks.time_ns[at] == start[row] + dur[row]
                found.append(row)
        assert not stack
    return found


@settings(max_examples=3 * settings.default.max_examples)
@given(SLICES)
def test_every_slice_begins_and_ends_once_inside_what_holds_it(slices):
    lane, start, dur = columns(slices)
    marks = mark(lane, start, dur)
    assert sorted(replayed(marks, start, dur)) == list(range(len(slices)))
    assert marks.left_out == 0
    assert (marks.lane[marks.track] == lane[marks.slice]).all()


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), min_size=1, max_size=40))
def test_sub_tracks_hold_no_two_slices_at_once(spans):
    start, dur = columns(spans)
    marks = mark(np.zeros(len(start), np.int64), start, dur)
    for track in np.flatnonzero(marks.number > 0):
        times = marks.time_ns[marks.track == track].reshape(-1, 2)
        assert (times[1:, 0] >= times[:-1, 1]).all()


def test_nested_slices_stay_on_their_lane_and_overlapping_ones_move():
    start = np.array([0, 1, 2, 50, 60], np.int64)
    dur = np.array([10, 5, 3, 20, 20], np.int64)
    marks = mark(np.zeros(5, np.int64), start, dur)
    number = marks.number[marks.track]
    assert dict(zip(marks.slice.tolist(), number.tolist(), strict=True)) == {
        0: 0, 1: 0, 2: 0, 3: 0, 4: 1
    }  # fmt: skip


def test_neighbours_that_overlap_by_the_resolution_of_the_clock_share_a_track():
    start = np.array([0, 5000, 5000], np.int64)
    dur = np.array([6000, 4000, 5000], np.int64)
    marks = mark(np.zeros(3, np.int64), start, dur, tolerance_ns=1000)
    assert marks.lane.tolist() == [0]
    assert marks.time_ns.tolist() == [0, 5000, 5000, 5000, 9000, 10000]
    assert mark(np.zeros(3, np.int64), start, dur).number.tolist() == [0, 1, 2]


def test_too_many_slices_at_once_are_counted():
    number = 1500
    start = np.arange(number, dtype=np.int64)
    marks = mark(np.zeros(number, np.int64), start, np.full(number, 10_000, np.int64))
    assert marks.left_out == number - 1 - 1024 or marks.left_out == number - 1024
    assert len(set(marks.slice.tolist())) == number - marks.left_out


@pytest.mark.parametrize("dtype", [np.uint32, np.int64])
def test_no_slices_have_no_marks(dtype):
    none = np.zeros(0, np.int64)
    marks = mark(none.astype(dtype), none, none)
    assert (len(marks.slice), len(marks.lane), marks.left_out) == (0, 0, 0)
