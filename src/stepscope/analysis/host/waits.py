"""Waits of a thread that the recorder does not show: for what another thread does.

Backends on the CPU (gloo, MPI, UCC) let a thread of their own do each collective and note it there,
as `gloo:all_reduce`. The thread that asked for it continues, and where it needs the result it
waits, in which nothing is recorded of it: no operator, no call. What is sent to one rank or
received is noted on the thread that asked for it, as `gloo:recv`, from then on until it is done. A
quiet stretch of at least `LEAST_NS`, at least half of which lies in communication of these kinds,
is waiting as far as that communication goes; the rest of it is not.

A thread may also leave its DataLoader to another one, and take the batches from a queue. If other
threads read DataLoaders and the main thread reads none, two things are its waits for input: frames
of Python in which it takes something from a queue or waits for a future, if stacks were recorded;
and quiet stretches of at least `LEAST_NS` of which at least half lies in the other threads' reading
(`enumerate(DataLoader)#…`), and that end as a batch arrives: within `_HANDED_OVER_NS` after it.

In a step that begins an epoch the loader is asked once more than in others: the last iterator has
no more batches, and the next one begins. Of several calls in such a step, as with gradient
accumulation, these are the two between which the thread begins least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.calls.collectives import ON_THE_HOST
from stepscope.analysis.selection.names import CALLS, events_named, names_that, times_of
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.categories import HOST_CALLS, is_one_of
from stepscope.trace.derive.steps import step_at
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

LEAST_NS = 200_000
_HANDED_OVER_NS = 1_000_000
_TAKES = (
    r"(^|/)queue\.py\(\d+\): get$|^<built-in method get of _queue\.SimpleQueue"
    r"|(^|/)concurrent/futures/_base\.py\(\d+\): result$"
)
_READS = r"(^|/)torch/utils/data/dataloader\.py\(\d+\): __next__$"
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


def input_waits(trace: Trace, lanes: tuple[int, ...]) -> dict[int, Intervals]:
    """For each of some threads the moments in which it waits for a batch that others read."""
    group = pl.col("group") == "dataloader"
    is_read = group.fill_null(value=False) | pl.col("name").str.contains(_READS)
    reads = _spans_of(trace, names_that(trace, is_read))
    if reads.is_empty():
        return dict.fromkeys(lanes, intervals.empty())
    takes = _spans_of(trace, names_that(trace, pl.col("name").str.contains(_TAKES)))
    readers = set(reads["lane_id"].unique().to_list())
    found = {}
    for lane in lanes:
        if lane in readers or lane != trace.main_lane:
            found[lane] = intervals.empty()
            continue
        mine = takes.filter(pl.col("lane_id") == lane)
        waits = intervals.merge(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
        found[lane] = intervals.union(waits, _until_a_batch(trace, lane, reads))
    return found


def _spans_of(trace: Trace, is_wanted: BoolArray) -> pl.DataFrame:
    names = pl.Series(np.flatnonzero(is_wanted))
    if names.is_empty():
        return pl.DataFrame(schema={"lane_id": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64})
    return (
        trace.events.filter(pl.col("name_id").is_in(names.implode()))
        .select("lane_id", "start_ns", (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))
        .collect()
    )


def _until_a_batch(trace: Trace, lane: int, reads: pl.DataFrame) -> Intervals:
    """Quiet stretches of a thread, mostly within others' reading, that end as a batch arrives."""
    own = (
        trace.events.filter(pl.col("lane_id") == lane, pl.col("category").is_in(_WORK))
        .select("start_ns", (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))
        .collect()
    )
    if own.is_empty():
        return intervals.empty()
    works = intervals.merge(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    whole = intervals.merge([int(works.starts[0])], [int(works.ends[-1])])
    quiet = intervals.difference(whole, works)
    reading = intervals.merge(reads["start_ns"].to_numpy(), reads["end_ns"].to_numpy())
    arrivals = np.sort(reads["end_ns"].to_numpy())
    last = arrivals[np.maximum(np.searchsorted(arrivals, quiet.ends, side="right") - 1, 0)]
    is_wait = (
        (quiet.lengths >= LEAST_NS)
        & (2 * intervals.covered(reading, quiet.starts, quiet.ends) >= quiet.lengths)
        & (last > quiet.starts)
        & (last <= quiet.ends)
        & (quiet.ends - last <= _HANDED_OVER_NS)
    )
    return intervals.merge(quiet.starts[is_wait], quiet.ends[is_wait])


def _waits(own: pl.DataFrame, collectives: pl.DataFrame) -> Intervals:
    if collectives.is_empty() or own.is_empty():
        return intervals.empty()
    running = intervals.merge(collectives["start_ns"].to_numpy(), collectives["end_ns"].to_numpy())
    works = intervals.merge(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
    whole = intervals.merge([int(works.starts[0])], [int(works.ends[-1])])
    quiet = intervals.difference(whole, works)
    inside = intervals.covered(running, quiet.starts, quiet.ends)
    waits = (quiet.lengths >= LEAST_NS) & (2 * inside >= quiet.lengths)
    return intervals.intersection(intervals.merge(quiet.starts[waits], quiet.ends[waits]), running)


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
    starts, ends = times_of(trace, asked)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], ends[order]
    step = step_at(host, starts)
    inside = step >= 0
    times = np.bincount(step[inside], minlength=len(host))
    usual = np.median(times)
    chosen = np.flatnonzero((times == usual + 1) & (times > 1))
    work = none
    if usual > 1 and len(chosen):
        work = events_named(trace, is_one_of((Category.CPU_OP, *HOST_CALLS)), lane)
        work = np.sort(times_of(trace, np.setdiff1d(work, asked))[0])
    last = []
    for one in chosen.tolist():
        rows = np.flatnonzero(inside & (step == one))
        begun = np.searchsorted(work, starts[rows[1:]]) - np.searchsorted(work, ends[rows[:-1]])
        last.append(int(rows[int(begun.argmin())]))
    found = np.array(last, np.int64)
    steps: tuple[int, ...] = tuple(host["step"].to_numpy()[chosen].tolist())
    return EpochStarts(steps, ends[found], starts[found + 1])
