"""Tiles against what a reader of every slice would count."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.arrays.placing import MOST_ROWS, place
from stepscope.viewer.slice_rows import BLOCK, SliceRows
from stepscope.viewer.tiles import MOST_BUCKETS, SliceTile, items_by_loop, slice_tile


def rows_of(*rows: list[tuple[int, int]]) -> SliceRows:
    """Rows of (start, end), sorted and without overlaps."""
    flat = [slice_ for row in rows for slice_ in row]
    number = np.arange(len(flat))
    return SliceRows.of(
        np.cumsum([0, *map(len, rows)]),
        np.array([s for s, _ in flat], np.int64),
        np.array([e for _, e in flat], np.int64),
        number,
        number + 1000,
        number % 7,
    )


@st.composite
def disjoint(draw: st.DrawFn) -> list[tuple[int, int]]:
    """A row: gaps and durations, many of them tiny, some long."""
    length = st.one_of(st.integers(0, 3), st.integers(0, 40), st.integers(0, 5000))
    pieces = draw(st.lists(st.tuples(length, length), max_size=400))
    at, row = draw(st.integers(0, 100)), []
    for gap, dur in pieces:
        at += gap
        row.append((at, at + dur))
        at += dur
    return row


def brute_force(row: list[tuple[int, int]], base: int, tile: SliceTile) -> list[tuple]:
    """The items of one row, worked out slice by slice and bucket by bucket."""
    step, first = tile.step_ns, tile.start_ns
    last = first + tile.buckets * step
    inside = [
        (number, s, e)
        for number, (s, e) in enumerate(row)
        if s < last and (e > first or s >= first)
    ]
    items = [
        (max(s, first), min(e, last), min(e, last) - max(s, first), 1, base + n, True)
        for n, s, e in inside
        if e - s >= step
    ]
    narrow = [(n, s, e) for n, s, e in inside if e - s < step]
    for bucket in range(tile.buckets):
        a, b = first + bucket * step, first + (bucket + 1) * step
        starting = [n for n, s, _ in narrow if a <= max(s, first) < b]
        touching = [(n, s, e) for n, s, e in narrow if n in starting or (s < b and e > a)]
        if touching:
            longest = max(touching, key=lambda one: (one[2] - one[1], -one[0]))
            covered = sum(max(0, min(e, b) - max(s, a)) for _, s, e in touching)
            items.append((a, b, covered, len(starting), base + longest[0], False))
    return items


def items_of(tile: SliceTile, at: int) -> list[tuple]:
    part = slice(tile.offsets[at], tile.offsets[at + 1])
    columns = (
        tile.item_start_ns, tile.item_end_ns, tile.covered_ns, tile.count, tile.event, tile.is_wide,
    )  # fmt: skip
    return list(zip(*(column[part].tolist() for column in columns), strict=True))


@given(
    st.lists(disjoint(), min_size=1, max_size=3),
    st.integers(0, 3000),
    st.integers(0, 12),
    st.integers(1, 30),
)
def test_a_tile_is_what_a_reader_of_every_slice_would_draw(rows, start, level, buckets):
    tile = slice_tile(rows_of(*rows), start, level, buckets, range(len(rows)))
    assert tile.start_ns <= start < tile.start_ns + tile.step_ns
    assert tile.start_ns % tile.step_ns == 0
    base = 0
    for number, row in enumerate(rows):
        assert sorted(items_of(tile, number)) == sorted(brute_force(row, base, tile))
        base += len(row)


@given(disjoint(), st.integers(0, 3000), st.integers(0, 12), st.integers(1, 30))
def test_items_come_in_order_and_cover_what_the_slices_cover(row, start, level, buckets):
    tile = slice_tile(rows_of(row), start, level, buckets, [0])
    end = tile.start_ns + tile.buckets * tile.step_ns
    inside = [(s, e) for s, e in row if s < end and (e > tile.start_ns or s >= tile.start_ns)]
    assert int(tile.covered_ns.sum()) == sum(min(e, end) - max(s, tile.start_ns) for s, e in inside)
    assert int(tile.count.sum()) == len(inside)
    assert (np.diff(tile.item_start_ns) >= 0).all()
    assert (tile.name == tile.event + 1000).all()
    assert (tile.colour == tile.event % 7).all()


@pytest.mark.parametrize("level", range(0, 24, 3))
def test_blocks_are_taken_whole_without_a_trace_in_the_result(level):
    chance = np.random.default_rng(4)
    pieces = np.cumsum(chance.integers(0, 60, 2 * 40 * BLOCK))
    row = list(zip(pieces[::2].tolist(), pieces[1::2].tolist(), strict=True))
    rows = rows_of(row)
    for start in (0, 777, int(pieces[-1]) // 2):
        tile = slice_tile(rows, start, level, 40, [0])
        assert sorted(items_of(tile, 0)) == sorted(brute_force(row, 0, tile))


def test_the_same_bucket_is_the_same_in_any_tile():
    chance = np.random.default_rng(5)
    pieces = np.cumsum(chance.integers(0, 90, 4000))
    rows = rows_of(list(zip(pieces[::2].tolist(), pieces[1::2].tolist(), strict=True)))
    left, right = slice_tile(rows, 1024, 7, 16, [0]), slice_tile(rows, 1024 + 8 * 128, 7, 16, [0])

    def narrow(tile: SliceTile, first: int, last: int) -> list[tuple]:
        return [i for i in items_of(tile, 0) if not i[5] and first <= i[0] and i[1] <= last]

    # The first bucket of a tile also counts what crosses its edge.
    edges = (1024 + 9 * 128, 1024 + 16 * 128)
    assert narrow(left, *edges) == narrow(right, *edges)
    assert len(narrow(left, *edges)) > 3


def test_a_slice_longer_than_the_tile_is_cut_to_it():
    tile = slice_tile(rows_of([(0, 10**15)]), 10**12 + 1, 10, 5, [0])
    assert items_of(tile, 0) == [
        (tile.start_ns, tile.start_ns + 6 * 1024, 6 * 1024, 1, 0, True)
    ]  # one bucket more, for the start was rounded down


def test_slices_out_of_order_stay_within_their_room():
    """A damaged file can hold any numbers; compiled code would write them past its arrays."""
    chance = np.random.default_rng(6)
    start = chance.integers(0, 4000, 5000)
    damaged = dataclasses.replace(
        rows_of([(at, at) for at in range(5000)]),
        start_ns=start,
        end_ns=start + chance.integers(0, 30, 5000),
    )
    low, high = np.array([0]), np.array([5000])
    starts, *_, found = items_by_loop(damaged, low, high, 0, 3, 8 * 500)
    assert len(starts) == found.sum() <= 2 * 500 + 1 + 3


@pytest.mark.parametrize(
    ("level", "buckets", "wanted"),
    [
        (-1, 5, [0]),
        (47, 5, [0]),
        (3, 0, [0]),
        (3, MOST_BUCKETS + 1, [0]),
        (3, 5, [1]),
        (3, 5, [-1]),
    ],
)
def test_impossible_tiles_are_refused(level, buckets, wanted):
    with pytest.raises(ValueError, match=r"no tile|there are rows"):
        slice_tile(rows_of([(0, 1)]), 0, level, buckets, wanted)


def test_rows_that_overlap_are_refused():
    with pytest.raises(ValueError, match="overlap"):
        rows_of([(0, 5), (4, 6)])
    with pytest.raises(ValueError, match="ends before"):
        rows_of([(6, 5)])
    assert len(rows_of([(0, 5)], [(4, 6)])) == 2


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 30)), max_size=60)


@given(spans, st.lists(st.integers(0, 2), min_size=60, max_size=60))
def test_no_two_slices_of_a_row_overlap_and_none_is_lost(slices, bands):
    band = np.array(bands[: len(slices)], np.int64)
    start = np.array([s for s, _ in slices], np.int64)
    dur = np.array([d for _, d in slices], np.int64)
    placed = place(band, start, dur)
    assert sorted(placed.order.tolist()) == list(range(len(slices)))
    for row in range(len(placed.band)):
        mine = placed.order[placed.offsets[row] : placed.offsets[row + 1]]
        assert len(mine)
        assert set(band[mine]) == {placed.band[row]}
        assert ((start + dur)[mine][:-1] <= start[mine][1:]).all()
    assert (placed.end_ns == (start + dur)[placed.order]).all()


@given(spans)
def test_a_slice_lies_below_every_slice_that_contains_it(slices):
    start = np.array([s for s, _ in slices], np.int64)
    dur = np.array([d for _, d in slices], np.int64)
    placed = place(np.zeros(len(slices), np.int64), start, dur)
    row = np.empty(len(slices), np.int64)
    row[placed.order] = np.repeat(np.arange(len(placed.band)), np.diff(placed.offsets))
    for a, (s, d) in enumerate(slices):
        for b, (t, e) in enumerate(slices):
            if (s, s + d) != (t, t + e) and s <= t < s + d and t + e <= s + d:
                assert row[a] < row[b]


def test_nested_slices_lie_at_their_depth():
    start = np.array([0, 1, 2, 5, 20, 21], np.int64)
    dur = np.array([10, 8, 2, 3, 5, 1], np.int64)
    placed = place(np.zeros(6, np.int64), start, dur)
    rows = [
        placed.order[a:b].tolist() for a, b in zip(placed.offsets, placed.offsets[1:], strict=False)
    ]
    assert rows == [[0, 4], [1, 5], [2, 3]]


def test_neighbours_that_overlap_by_the_clock_share_a_row():
    start, dur = np.array([0, 9_500], np.int64), np.array([10_000, 10_000], np.int64)
    exact = place(np.zeros(2, np.int64), start, dur)
    assert len(exact.band) == 2
    coarse = place(np.zeros(2, np.int64), start, dur, tolerance_ns=1000)
    assert len(coarse.band) == 1
    assert coarse.end_ns.tolist() == [9_500, 19_500]


def test_slices_beyond_the_last_row_are_counted():
    number = MOST_ROWS + 10
    placed = place(np.zeros(number, np.int64), np.arange(number), np.full(number, 10**6))
    # Each ends later than the one before, so none contains another.
    assert placed.left_out == 10
    assert len(placed.order) == MOST_ROWS
