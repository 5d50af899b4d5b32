"""Waits for a batch that others prepare: they end when the batch arrives.

A DataLoader with workers, or a thread of the program's own, prepares batches beside the training.
Where the training waits for them, batches come at their pace: a host that comes earlier waits
longer. A wait of a loader without workers is the loading itself, and takes as long whenever it
begins.

A wait counts as one for a batch's arrival if it is noted by a loader with workers, or is one for
another thread, and takes longer than fetching a batch that is ready. Where few batches are waited
for, nothing shows the pace of the workers, which may be ahead: such waits keep their length. So
does the first wait of an epoch, where stacks show its beginning: its batch is begun only then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import HostEvents
from stepscope.analysis.selection.names import names_that
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

_WITH_WORKERS = "_MultiProcessingDataLoaderIter"
_FETCHING_NS = 1_000_000
_FETCHING_SHARE = 0.03  # of a step
_OFTEN = 0.25  # of all batches
_ITERATORS = r"torch/utils/data/dataloader\.py\(\d+\): __iter__$"
_ALIKE = 1.1
"""The longest time per batch over the shortest, if batches come at one pace."""


@dataclass(frozen=True)
class BatchArrivals:
    """Waits for batches that arrive while the main thread waits, in order.

    Attributes:
        start_ns: When the main thread began to wait.
        end_ns: When the batch arrived.
        after_ns: From the arrival before to each arrival; for the first, from the last one, if the
            same steps came again, but not less than at the pace of the others, if they have one:
            a window may begin late in the wait for its first batch.
    """

    start_ns: Int64Array
    end_ns: Int64Array
    after_ns: Int64Array

    def __len__(self) -> int:
        return len(self.end_ns)


def find_arrivals(
    trace: Trace,
    host: HostEvents,
    main_lane: int,
    window: tuple[int, int],
    steps: int,
    batch_ns: int = 0,
) -> BatchArrivals:
    """Find the waits of the main thread that end with a batch's arrival.

    Args:
        trace: The trace.
        host: What its threads did.
        main_lane: The main thread.
        window: Start and end of the steps on the host.
        steps: How many steps these are.
        batch_ns: The pace at which batches come, by a step record; 0: as these steps show it.
    """
    none = np.zeros(0, np.int64)
    waits = host.table.filter(
        (pl.col("cause") == int(HostCause.INPUT)) & (pl.col("lane_id") == main_lane)
    ).filter(pl.col("start_ns") >= window[0], pl.col("end_ns") <= window[1])
    if waits.is_empty() or not steps:
        return BatchArrivals(none, none, none)
    names = trace.name_rows["name"]
    events = waits["event"].to_numpy()
    name_id = trace.columns("name_id")["name_id"][np.maximum(events, 0)]
    is_batch = names[name_id].str.contains(_WITH_WORKERS, literal=True).to_numpy() | (events < 0)
    batches = waits.filter(pl.Series(is_batch)).sort("start_ns")
    start, end = batches["start_ns"].to_numpy(), batches["end_ns"].to_numpy()
    length_ns = window[1] - window[0]
    if batch_ns:
        return BatchArrivals(start, end, np.full(len(end), batch_ns))
    is_long = end - start > max(_FETCHING_NS, _FETCHING_SHARE * length_ns / steps)
    is_first = _follow_iterators(trace, main_lane, start)
    late = np.flatnonzero(is_long & ~is_first)
    others = len(batches) - int(is_first.sum())
    is_often = len(late) >= max(2, _OFTEN * others) or len(late) == others
    if not len(late) or not is_often:
        return BatchArrivals(none, none, none)
    taken = len(batches)
    start, end = start[late], end[late]
    after = np.diff(end, prepend=end[-1] - length_ns)
    # By batch: some are ready when they are asked for.
    pace = after[1:] / np.diff(late)
    if len(pace) > 1 and pace.max() <= _ALIKE * pace.min():
        between = late[0] + taken - late[-1]
        after[0] = max(after[0], round(float(pace.mean()) * between))
    return BatchArrivals(start, end, after)


def _follow_iterators(trace: Trace, lane: int, start_ns: Int64Array) -> BoolArray:
    """Which waits of a thread, in order, are the first of an epoch, as far as stacks tell."""
    found = np.zeros(len(start_ns), np.bool_)
    is_frame = pl.col("category") == Category.PYTHON_FUNCTION.value
    makes = names_that(trace, is_frame & pl.col("name").str.contains(_ITERATORS))
    if makes.any():
        columns = trace.columns("name_id", "lane_id", "start_ns")
        is_call = makes[columns["name_id"].to_numpy()] & (columns["lane_id"] == lane).to_numpy()
        first = np.searchsorted(start_ns, columns["start_ns"].to_numpy()[is_call])
        found[first[first < len(found)]] = True
    return found
