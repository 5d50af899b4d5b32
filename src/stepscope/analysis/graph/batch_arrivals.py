"""Waits for a batch that others prepare: they end when the batch arrives.

A DataLoader with workers, or a thread of the program's own, prepares batches beside the training.
Where the training waits for them, batches come at their pace: a host that comes earlier waits
longer. A wait of a loader without workers is the loading itself, and takes as long whenever it
begins.

A wait counts as one for a batch's arrival if it is noted by a loader with workers, or is one for
another thread, and takes longer than fetching a batch that is ready. Where few batches are waited
for, nothing shows the pace of the workers, which may be ahead: such waits keep their length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import HostEvents
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace

_WITH_WORKERS = "_MultiProcessingDataLoaderIter"
_FETCHING_NS = 1_000_000
_FETCHING_SHARE = 0.03  # of a step
_OFTEN = 0.25  # of all batches


@dataclass(frozen=True)
class BatchArrivals:
    """Waits for batches that arrive while the main thread waits, in order.

    Attributes:
        start_ns: When the main thread began to wait.
        end_ns: When the batch arrived.
        after_ns: From the arrival before to each arrival; for the first, from the last one, if the
            same steps came again.
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
    late = np.flatnonzero(is_long)
    is_often = len(late) >= max(2, _OFTEN * len(batches)) or len(late) == len(batches)
    if not len(late) or not is_often:
        return BatchArrivals(none, none, none)
    start, end = start[late], end[late]
    return BatchArrivals(start, end, np.diff(end, prepend=end[-1] - length_ns))
