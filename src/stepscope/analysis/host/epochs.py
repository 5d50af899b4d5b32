"""Where a DataLoader's epochs begin, as a trace shows it.

In a step that begins an epoch the loader is asked once more than in others: the last iterator has
no more batches, and the next one begins. Of several calls in such a step, as with gradient
accumulation, these are the two between which the thread begins least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.selection.memoize import memoized
from stepscope.analysis.selection.names import events_named
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.categories import HOST_CALLS, is_one_of
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category


@dataclass(frozen=True)
class EpochStarts:
    """Starts of epochs on the thread of the steps, in order.

    Attributes:
        ended_ns: When the call ends that finds no more batches.
        began_ns: When the call begins that waits for the epoch's first batch.
    """

    steps: tuple[int, ...]
    ended_ns: Int64Array
    began_ns: Int64Array


@memoized
def epoch_starts(trace: Trace) -> EpochStarts:
    """The starts of epochs within the steps of a trace."""
    host, none = trace.steps, np.zeros(0, np.int64)
    if host.is_empty():
        return EpochStarts((), none, none)
    lane = (host["lane_id"][0],)
    asked = events_named(trace, pl.col("group") == "dataloader", lane)
    events = trace.columns("start_ns", "dur_ns")
    all_starts, lengths = events["start_ns"].to_numpy(), events["dur_ns"].to_numpy()
    asked = asked[np.argsort(all_starts[asked], kind="stable")]
    starts = all_starts[asked]
    ends = starts + lengths[asked]
    step = np.searchsorted(host["start_ns"].to_numpy(), starts, side="right") - 1
    inside = (step >= 0) & (starts < host["end_ns"].to_numpy()[np.maximum(step, 0)])
    times = np.bincount(step[inside], minlength=len(host))
    usual = np.median(times)
    chosen = np.flatnonzero((times == usual + 1) & (times > 1))
    work = none
    if usual > 1 and len(chosen):
        work = events_named(trace, is_one_of((Category.CPU_OP, *HOST_CALLS)), lane)
        work = np.sort(all_starts[np.setdiff1d(work, asked)])
    last = []
    for one in chosen.tolist():
        rows = np.flatnonzero(inside & (step == one))
        begun = np.searchsorted(work, starts[rows[1:]]) - np.searchsorted(work, ends[rows[:-1]])
        last.append(int(rows[int(begun.argmin())]))
    found = np.array(last, np.int64)
    steps: tuple[int, ...] = tuple(host["step"].to_numpy()[chosen].tolist())
    return EpochStarts(steps, ends[found], starts[found + 1])
