"""The event and the operator around each event of a trace, which many questions look up."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.selection.memoize import memoized
from stepscope.analysis.selection.names import names_that
from stepscope.run.own_frames import CALLED, OWN_FILE, PASSED_ON, THREADING
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
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
    while len(pending):
        is_inside = own[parent[pending]]
        if not is_inside.any():
            break
        own[pending[is_inside]] = True
        pending = pending[~is_inside]
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
    above = parent[frames]
    is_first = above >= 0  # the main thread begins with a frame of its own
    frames, above = frames[is_first], above[is_first]
    found = np.zeros(len(frames), bool)
    pending = np.arange(len(frames))
    while len(pending):
        here = above[pending]
        found[pending[here < 0]] = True
        pending = pending[here >= 0]
        pending = pending[begins[above[pending]]]
        above[pending] = parent[above[pending]]
    ours = np.unique(lane_id[frames[found]])
    # A main thread runs our functions, too, such as those at exit, but not only these.
    is_other = names_that(trace, pl.col("name").str.contains(r"\.py")) & ~names_that(
        trace, pl.col("name").str.contains(OWN_FILE)
    )
    rows = np.nonzero(np.isin(lane_id, ours) & is_other[name_id] & ~begins & (parent >= 0))[0]
    return np.setdiff1d(ours, lane_id[rows[begins[parent[rows]]]])
