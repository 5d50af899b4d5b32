"""The event and the operator around each event of a trace, which many questions look up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.selection.names import names_that
from stepscope.analysis.selection.scope import memoized
from stepscope.run.own_frames import CALLED, OWN_FILE, PASSED_ON, THREADING
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import distinct
from stepscope.trace.derive.ancestors import depths, nearest_above
from stepscope.trace.derive.nesting import RowNumbers
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category


@memoized
def parents_of_events(trace: Trace) -> RowNumbers:
    """For each event the number of its parent, in 32 bits where that is enough; -1 for a root."""
    return trace.parents


@memoized
def operators_of_events(trace: Trace) -> pl.Series:
    """For each event the number of its operator (`derived.op`), null without."""
    return trace.derived_numbers("op")


@memoized
def own_events(trace: Trace) -> BoolArray | None:
    """For each event whether it is Stepscope's own; None if none is.

    All events of a thread that Stepscope started are its own. On others, frames are.
    """
    is_frame = pl.col("category") == Category.PYTHON_FUNCTION.value
    in_file = names_that(trace, is_frame & pl.col("name").str.contains(OWN_FILE))
    if not in_file.any():
        return None
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    lane_id = trace.columns("lane_id")["lane_id"].to_numpy()
    parent = parents_of_events(trace)
    own: BoolArray = in_file[name_id]
    frames = np.nonzero(own)[0]
    threads = _own_threads(trace, frames, name_id, parent, lane_id)
    is_called = names_that(trace, is_frame & pl.col("name").str.contains(CALLED))
    is_passed_on = names_that(trace, is_frame & pl.col("name").str.contains(PASSED_ON))
    pending = np.nonzero(is_called[name_id] & ~own & (parent >= 0))[0]
    above = parent[pending]
    pending = pending[~(is_passed_on[name_id[pending]] & in_file[name_id[above]])]
    is_pending = np.zeros(len(own), np.bool_)
    is_pending[pending] = True
    around = nearest_above(parent, pending, ~is_pending)
    own[pending] = (around >= 0) & own[around]
    if len(threads):
        own |= np.isin(lane_id, threads)
    return own


def _own_threads(
    trace: Trace,
    frames: Int64Array,
    name_id: np.ndarray[tuple[int], np.dtype[np.uint32]],
    parent: np.ndarray[tuple[int], np.dtype[np.signedinteger]],
    lane_id: np.ndarray[tuple[int], np.dtype[np.uint32]],
) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    """Lanes on which a frame of ours is the first above those that begin a thread."""
    begins = names_that(trace, pl.col("name").str.contains(THREADING))[name_id]
    # The main thread begins with a frame of its own.
    is_first = (parent[frames] >= 0) & (nearest_above(parent, frames, ~begins) < 0)
    ours = np.unique(lane_id[frames[is_first]])
    # A main thread runs our functions, too, such as those at exit, but not only these.
    is_other = names_that(trace, pl.col("name").str.contains(r"\.py")) & ~names_that(
        trace, pl.col("name").str.contains(OWN_FILE)
    )
    rows = np.nonzero(np.isin(lane_id, ours) & is_other[name_id] & ~begins & (parent >= 0))[0]
    return np.setdiff1d(ours, lane_id[rows[begins[parent[rows]]]])


@dataclass(frozen=True, eq=False)
class Paths:
    """The distinct paths, numbered level by level: parents come before their children.

    Attributes:
        parent: Path without its last name; -1: a root.
        key: Last name of each path.
        levels: First path of each level, and the number of paths.
    """

    of_row: Int64Array
    parent: Int64Array
    key: Int64Array
    levels: list[int]

    @property
    def depth(self) -> Int64Array:
        """Level of each path, from 0."""
        return np.repeat(np.arange(len(self.levels) - 1), np.diff(self.levels))

    def sum(self, values: Int64Array) -> Int64Array:
        """Sum of a value over the rows of each path."""
        total = np.zeros(len(self.parent), np.int64)
        np.add.at(total, self.of_row, values)
        return total

    def with_descendants(self, values: Int64Array) -> Int64Array:
        """For each path the sum of a value over the path and everything below it."""
        total = values.copy()
        for first, last in zip(self.levels[-2:0:-1], self.levels[:1:-1], strict=True):
            np.add.at(total, self.parent[first:last], total[first:last])
        return total


def number_paths(row_parent: Int64Array, row_key: Int64Array) -> Paths:
    """The paths of some rows.

    Args:
        row_parent: Row that each stands below; -1: a root.
        row_key: What tells siblings apart: rows of one parent and one key are of one path.
    """
    depth = depths(row_parent)
    # numpy sorts 16-bit numbers by counting.
    narrow = depth.astype(np.int16) if depth.max(initial=0) < 2**15 else depth
    order = np.argsort(narrow, kind="stable")
    width = int(row_key.max(initial=0)) + 1
    of_row = np.full(len(row_key), -1, np.int64)
    parts: list[Int64Array] = []
    levels = [0]
    ends = np.cumsum(np.bincount(depth)) if len(depth) else np.zeros(0, np.int64)
    for first, last in zip([0, *ends[:-1]], ends, strict=False):
        rows = order[first:last]
        above = row_parent[rows]
        # One number per path: that of its parent, then its key.
        key = (np.where(above >= 0, of_row[above], -1) + 1) * width + row_key[rows]
        own = distinct(pl.Series(key))
        of_row[rows] = levels[-1] + np.searchsorted(own, key)
        parts.append(own)
        levels.append(levels[-1] + len(own))
    keys = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    return Paths(of_row, keys // width - 1, keys % width, levels)
