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
from stepscope.analysis.selection.names import (
    events_named,
    events_with_names,
    names_that,
    times_of,
)
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
_WORK = (Category.CPU_OP, *HOST_CALLS)


def shows_collectives(trace: Trace) -> bool:
    """Whether the threads that do collectives for others have noted any."""
    return bool(_have_names(trace, ON_THE_HOST).any())


def _have_names(trace: Trace, pattern: str) -> BoolArray:
    return names_that(trace, pl.col("name").str.contains(pattern))


def communication_waits(trace: Trace, lanes: tuple[int, ...]) -> dict[int, Intervals]:
    """For each of some threads the moments in which it waits for communication that others do."""
    events = events_with_names(trace, _have_names(trace, ON_THE_HOST))
    if not len(events):
        return dict.fromkeys(lanes, intervals.empty())
    columns = trace.columns("name_id", "lane_id")
    lane_id = columns["lane_id"].to_numpy()[events]
    is_exchange = _have_names(trace, _EXCHANGES)[columns["name_id"].to_numpy()[events]]
    found = {}
    for lane in lanes:
        running = intervals.merge(*times_of(trace, events[(lane_id != lane) | is_exchange]))
        quiet = _quiet(trace, lane)
        inside = intervals.covered(running, quiet.starts, quiet.ends)
        waits = (quiet.lengths >= LEAST_NS) & (2 * inside >= quiet.lengths)
        waiting = intervals.merge(quiet.starts[waits], quiet.ends[waits])
        found[lane] = intervals.intersection(waiting, running)
    return found


def input_waits(trace: Trace, lanes: tuple[int, ...]) -> dict[int, Intervals]:
    """For each of some threads the moments in which it waits for a batch that others read."""
    found = dict.fromkeys(lanes, intervals.empty())
    is_read = (pl.col("group") == "dataloader") | pl.col("name").str.contains(_READS)
    reads = events_named(trace, is_read)
    lane = trace.main_lane
    if lane is None or lane not in found or not len(reads):
        return found
    if (trace.columns("lane_id")["lane_id"].to_numpy()[reads] != lane).all():
        takes = events_with_names(trace, _have_names(trace, _TAKES), (lane,))
        waits = intervals.merge(*times_of(trace, takes))
        found[lane] = intervals.union(waits, _until_a_batch(trace, lane, reads))
    return found


def _quiet(trace: Trace, lane: int) -> Intervals:
    """When a thread is in no operator and no call, between the first of them and the last."""
    works = intervals.merge(*times_of(trace, events_named(trace, is_one_of(_WORK), (lane,))))
    if not len(works):
        return works
    return intervals.complement(works, int(works.starts[0]), int(works.ends[-1]))


def _until_a_batch(trace: Trace, lane: int, reads: Int64Array) -> Intervals:
    """Quiet stretches of a thread, mostly within others' reading, that end as a batch arrives."""
    quiet = _quiet(trace, lane)
    starts, ends = times_of(trace, reads)
    reading, arrivals = intervals.merge(starts, ends), np.sort(ends)
    last = arrivals[np.maximum(np.searchsorted(arrivals, quiet.ends, side="right") - 1, 0)]
    is_wait = (
        (quiet.lengths >= LEAST_NS)
        & (2 * intervals.covered(reading, quiet.starts, quiet.ends) >= quiet.lengths)
        & (last > quiet.starts)
        & (last <= quiet.ends)
        & (quiet.ends - last <= _HANDED_OVER_NS)
    )
    return intervals.merge(quiet.starts[is_wait], quiet.ends[is_wait])


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
        work = events_named(trace, is_one_of(_WORK), lane)
        work = np.sort(times_of(trace, np.setdiff1d(work, asked))[0])
    last = []
    for one in chosen.tolist():
        rows = np.flatnonzero(inside & (step == one))
        begun = np.searchsorted(work, starts[rows[1:]]) - np.searchsorted(work, ends[rows[:-1]])
        last.append(int(rows[int(begun.argmin())]))
    found = np.array(last, np.int64)
    steps: tuple[int, ...] = tuple(host["step"].to_numpy()[chosen].tolist())
    return EpochStarts(steps, ends[found], starts[found + 1])
