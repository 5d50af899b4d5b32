"""Waits of a thread that the recorder does not show: for communication done by another thread.

Backends on the CPU (gloo, MPI, UCC) let a thread of their own do each collective and note it there,
as `gloo:all_reduce`. The thread that asked for it goes on, and where it needs the result it waits,
in which nothing is recorded of it: no operator, no call. What is sent to one rank or received is
noted on the thread that asked for it, as `gloo:recv`, from then on until it is done. A quiet
stretch of at least `LEAST_NS`, at least half of which lies in communication of these kinds, is
waiting as far as that communication goes; the rest of it is not.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.calls.collectives import ON_THE_HOST
from stepscope.analysis.selection.names import CALLS, names_that
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Intervals
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

LEAST_NS = 200_000
_EXCHANGES = f"{ON_THE_HOST}(send|recv)"
"""Names of the ranges in which they send to one rank or receive."""
_WORK = (Category.CPU_OP.value, *CALLS)


def shows_collectives(trace: Trace) -> bool:
    """Whether the threads that do collectives for others have noted any."""
    return bool(_are_collectives(trace).any())


def _are_collectives(trace: Trace) -> BoolArray:
    return names_that(trace, pl.col("name").str.contains(ON_THE_HOST))


def communication_waits(trace: Trace, lanes: tuple[int, ...]) -> dict[int, Intervals]:
    """For each of some threads the moments in which it waits for communication that others do."""
    names = np.flatnonzero(_are_collectives(trace))
    if not len(names):
        return dict.fromkeys(lanes, intervals.empty())
    exchanges = np.flatnonzero(names_that(trace, pl.col("name").str.contains(_EXCHANGES)))
    is_exchange = pl.col("name_id").is_in(pl.Series(exchanges).implode()).alias("is_exchange")
    end = (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns")
    collectives = (
        trace.events.filter(pl.col("name_id").is_in(pl.Series(names).implode()))
        .select("lane_id", "start_ns", end, is_exchange)
        .collect()
    )
    own = (
        trace.events.filter(pl.col("lane_id").is_in(lanes), pl.col("category").is_in(_WORK))
        .select("lane_id", "start_ns", end)
        .collect()
    )
    return {
        lane: _waits(
            own.filter(pl.col("lane_id") == lane),
            collectives.filter((pl.col("lane_id") != lane) | pl.col("is_exchange")),
        )
        for lane in lanes
    }


def _waits(own: pl.DataFrame, collectives: pl.DataFrame) -> Intervals:
    """The waits of a thread, from its own work and the collectives of others."""
    if collectives.is_empty() or own.is_empty():
        return intervals.empty()
    running = intervals.merge(collectives["start_ns"].to_numpy(), collectives["end_ns"].to_numpy())
    works = intervals.merge(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    whole = intervals.merge([int(works.starts[0])], [int(works.ends[-1])])
    quiet = intervals.difference(whole, works)
    inside = intervals.covered(running, quiet.starts, quiet.ends)
    waits = (quiet.lengths >= LEAST_NS) & (2 * inside >= quiet.lengths)
    return intervals.intersection(intervals.merge(quiet.starts[waits], quiet.ends[waits]), running)
