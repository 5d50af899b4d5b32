"""Puts slices on tracks whose slices nest, in the order in which they begin and end.

Definitions
    Other tools draw a track as a call tree: what begins last ends first. Slices of one lane that
    overlap without nesting (streams that run several kernels at once, files of several threads)
    move to sub-tracks, where no two overlap, so that no tool drops them.
    A mark is the beginning or the end of a slice. The marks of a track are in the order of time;
    at one moment, ends of earlier slices come first, inner before outer, and then beginnings,
    outer before inner. An inner slice that outlives its outer one by the resolution of the clock
    ends with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.ordering import by_group_and_time
from stepscope.trace.arrays.placing import MOST_ROWS, place
from stepscope.trace.categories import GPU_CATEGORIES, code_of
from stepscope.trace.derive.clock_resolution import clock_resolution_ns
from stepscope.trace.derive.nesting import nest, outer_first
from stepscope.trace.schema import Category

_MOST_ROUNDS = 16
"""Rounds in which overlapping slices leave a lane, before all of that lane's move to sub-tracks."""
BANDS = ("", "annotations", "synchronisation")
"""What has tracks of its own beside a stream's work: annotations hold kernels in time without
calling them, and synchronisation records wait beside them."""


@dataclass(frozen=True, eq=False)
class Marks:
    """The marks of all slices, by track and time: two for each slice.

    Attributes:
        track: Number of its track; a track's marks follow one another.
        number: Number of each track within its lane; 0 is the lane itself, others are sub-tracks.
        left_out: Number of slices that found no place, because too many overlap at once.
    """

    slice: Int64Array
    is_begin: BoolArray
    time_ns: Int64Array
    track: Int64Array
    lane: Int64Array
    number: Int64Array
    left_out: int


def marks_of(events: pl.DataFrame) -> Marks:
    """Put the events of a trace on tracks, whose lanes are numbered by lane and band.

    Args:
        events: name_id, category, lane_id, start_ns, dur_ns.
    """
    on_host = ~events["category"].is_in([c.value for c in GPU_CATEGORIES]).to_numpy()
    start = events["start_ns"].to_numpy()
    band = np.zeros(len(Category), np.int64)
    band[code_of(Category.GPU_USER_ANNOTATION)] = 1
    band[code_of(Category.DEVICE_SYNC)] = 2
    category = events["category"].to_physical().to_numpy()
    return mark(
        events["lane_id"].to_numpy().astype(np.int64) * len(BANDS) + band[category],
        start,
        events["dur_ns"].to_numpy(),
        outer_first()[category],
        clock_resolution_ns(start[on_host]),
    )


def mark(
    lane: npt.NDArray[np.integer[Any]],
    start_ns: Int64Array,
    dur_ns: Int64Array,
    rank: npt.NDArray[np.generic] | None = None,
    tolerance_ns: int = 0,
) -> Marks:
    """Put slices on tracks.

    Args:
        rank: Order among slices with the same span, outer ones first; default: the order given.
        tolerance_ns: Resolution of the clock: neighbours that overlap by no more do not overlap.
    """
    lanes: Int64Array = lane.astype(np.int64)
    rank = np.zeros(len(lane), np.int8) if rank is None else rank
    if tolerance_ns:
        dur_ns = _without_rounding(lanes, start_ns, dur_ns, rank, tolerance_ns)
    number, left_out = _sub_tracks(lanes, start_ns, dur_ns, rank)
    kept = np.flatnonzero(number >= 0)
    # The lane itself is track 0, and one band has at most MOST_ROWS rows.
    keys, track = np.unique(lanes[kept] * (MOST_ROWS + 1) + number[kept], return_inverse=True)
    rows, is_begin, time_ns = _ordered(track, start_ns[kept], dur_ns[kept], rank[kept])
    of_lane, within = np.divmod(keys, MOST_ROWS + 1)
    return Marks(kept[rows], is_begin, time_ns, track[rows], of_lane, within, left_out)


def _without_rounding(
    lane: Int64Array,
    start: Int64Array,
    dur: Int64Array,
    rank: npt.NDArray[np.generic],
    tolerance: int,
) -> Int64Array:
    """Durations cut where a neighbour or an outer slice ends up to the tolerance too early."""
    placed = place(lane, start, dur, rank, tolerance)
    end = start + dur
    end[placed.order] = placed.end_ns
    parent = nest(lane, start, end - start, rank, tolerance).parent
    inner = np.flatnonzero(parent >= 0)
    late = inner
    while len(late):  # an outer slice that was cut cuts what it holds
        late = inner[end[inner] > end[parent[inner]]]
        end[late] = end[parent[late]]
    cut_dur: Int64Array = np.maximum(end - start, 0)
    return cut_dur


def _sub_tracks(
    lane: Int64Array, start: Int64Array, dur: Int64Array, rank: npt.NDArray[np.generic]
) -> tuple[Int64Array, int]:
    """Each slice's number within its lane, -1 where it has none; and how many have none."""
    nesting = np.arange(len(lane))
    moved: list[Int64Array] = []
    for _ in range(_MOST_ROUNDS):
        crossing = nest(lane[nesting], start[nesting], dur[nesting], rank[nesting]).crossing
        if not crossing.any():
            break
        moved.append(nesting[crossing])
        nesting = nesting[~crossing]
    else:
        still = np.isin(lane[nesting], lane[nesting[crossing]])
        moved.append(nesting[still])
    number = np.zeros(len(lane), np.int64)
    if not moved:
        return number, 0
    rows = np.concatenate(moved)
    number[rows] = -1
    placed = place(lane[rows], start[rows], dur[rows], rank[rows])
    first = np.searchsorted(placed.band, placed.band)  # bands are sorted
    of_row = np.arange(len(placed.band)) - first + 1
    number[rows[placed.order]] = np.repeat(of_row, np.diff(placed.offsets))
    return number, placed.left_out


def _ordered(
    track: Int64Array, start: Int64Array, dur: Int64Array, rank: npt.NDArray[np.generic]
) -> tuple[Int64Array, BoolArray, Int64Array]:
    """The marks of slices that nest on their tracks: slice, whether it begins, time.

    In the order of their beginnings the slices of a call tree are in preorder. Before the slice at
    position p and depth d begins, p slices have begun and all but d of them have ended, so that its
    beginning is mark 2p - d, and its end follows the two marks of each slice within it.
    """
    order = by_group_and_time(track, start, -dur, rank)
    nested = nest(track, start, dur, rank)
    depth = nested.depth[order].astype(np.int64)
    within = _slices_within(nested.parent, nested.depth)[order]
    begin = 2 * np.arange(len(order), dtype=np.int64) - depth
    end = begin + 2 * within + 1
    row = np.empty(2 * len(order), np.int64)
    is_begin = np.empty(2 * len(order), np.bool_)
    time_ns = np.empty(2 * len(order), np.int64)
    row[begin], row[end] = order, order
    is_begin[begin], is_begin[end] = True, False
    time_ns[begin], time_ns[end] = start[order], (start + dur)[order]
    return row, is_begin, time_ns


def _slices_within(parent: Int64Array, depth: npt.NDArray[np.int32]) -> Int64Array:
    count = np.zeros(len(parent), np.int64)
    deepest_first = np.argsort(-depth, kind="stable")
    borders = np.flatnonzero(np.diff(depth[deepest_first])) + 1
    for rows in np.split(deepest_first, borders):
        inner = rows[parent[rows] >= 0]
        np.add.at(count, parent[inner], count[inner] + 1)
    return count
