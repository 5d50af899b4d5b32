"""What the threads that feed a GPU did at each moment, as far as it can keep the GPU waiting.

Calls and the operators around them are one activity here, `DISPATCH`: in both the host is about to
launch the next work.

A thread whose time nothing explains may be waiting for another one, as the main thread waits for
autograd's: then what the other thread does counts, the main thread first, then those that launched
most, eight in all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import HostEvents, host_events
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.arrays.nullable import distinct
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.model import Trace

_MOST_OTHERS = 8  # threads that one may be waiting for


@dataclass(frozen=True)
class Activity:
    """What one launching thread did, or waited for.

    Attributes:
        starts: Starts of stretches, sorted and disjoint; what lies between them is `PYTHON`.
        ends: Their ends.
        causes: The `HostCause` of each; `LAUNCH` counts as `DISPATCH`.
        lanes: The thread that did it.
    """

    starts: Int64Array
    ends: Int64Array
    causes: Int64Array
    lanes: Int64Array


@dataclass(frozen=True)
class HostActivity:
    """The activity of every thread that launched GPU work.

    Attributes:
        by_lane: Activity of each launching thread.
        outermost: For each thread and cause the events that make it up and lie in no other of the
            same cause: event number, start; sorted by start.
    """

    by_lane: dict[int, Activity]
    outermost: dict[tuple[int, int], tuple[Int64Array, Int64Array]]

    def event_at(self, lane: Int64Array, cause: Int64Array, times: Int64Array) -> Int64Array:
        """For each moment the outermost event of that cause on that thread; -1: none."""
        found = np.full(len(times), -1, np.int64)
        for (one_lane, one_cause), (events, starts) in self.outermost.items():
            mine = np.nonzero((lane == one_lane) & (cause == one_cause))[0]
            if len(mine):
                place = np.searchsorted(starts, times[mine], side="right") - 1
                found[mine] = np.where(place >= 0, events[np.maximum(place, 0)], -1)
        return found


def host_activity(trace: Trace, work: pl.DataFrame) -> HostActivity:
    """Find out what the threads did that launched this GPU work.

    Args:
        trace: The trace.
        work: GPU work with its launch (see `gpu_work`).
    """
    order = _feeding_lanes(trace, work)
    events = host_events(trace, tuple(sorted(order)))
    claims = {lane: _with_launches_as_dispatch(events.claims(lane)) for lane in order}
    by_lane = {lane: _with_others(lane, order, claims) for lane in order}
    return HostActivity(by_lane, _outermost(events, order))


def _feeding_lanes(trace: Trace, work: pl.DataFrame) -> list[int]:
    """The main thread, then those that launched this work, the busiest first."""
    launches = distinct(work["launch"])
    lanes = trace.columns("lane_id")["lane_id"][launches]
    counts = lanes.value_counts(name="launches").sort(
        "launches", "lane_id", descending=[True, False]
    )
    main = [] if trace.main_lane is None else [trace.main_lane]
    return [*main, *(lane for lane in counts["lane_id"].to_list() if lane not in main)]


def _with_launches_as_dispatch(claims: list[Intervals]) -> list[Intervals]:
    """The moments of each cause, those of `LAUNCH` among those of `DISPATCH`."""
    together = list(claims)
    together[HostCause.DISPATCH] = intervals.union(
        claims[HostCause.LAUNCH], claims[HostCause.DISPATCH]
    )
    together[HostCause.LAUNCH] = intervals.empty()
    return together


def _outermost(
    events: HostEvents, lanes: list[int]
) -> dict[tuple[int, int], tuple[Int64Array, Int64Array]]:
    """The events of each thread and cause that lie in no other of the same."""
    table = events.table
    lane, cause = table["lane_id"].to_numpy(), table["cause"].to_numpy()
    cause = np.where(cause == HostCause.LAUNCH, np.int8(HostCause.DISPATCH), cause)
    start, end, event = (table[name].to_numpy() for name in ("start_ns", "end_ns", "event"))
    found = {}
    for one in lanes:
        mine = np.nonzero(lane == one)[0]
        causes = cause[mine]
        for code in distinct_groups(causes):
            rows = mine[causes == code]
            reach = np.maximum.accumulate(end[rows])
            is_outer = np.append(True, end[rows][1:] > reach[:-1])
            found[one, code] = (event[rows[is_outer]], start[rows[is_outer]])
    return found


def _with_others(lane: int, order: list[int], claims: dict[int, list[Intervals]]) -> Activity:
    """What a thread does, and where it does nothing, what the others do."""
    starts, ends, causes, lanes = [], [], [], []
    claimed = intervals.empty()
    for other in [lane, *(one for one in order[:_MOST_OTHERS] if one != lane)]:
        active = intervals.empty()
        for cause, own in enumerate(claims[other]):
            if not len(own):
                continue
            left = intervals.difference(own, claimed)
            starts.append(left.starts)
            ends.append(left.ends)
            causes.append(np.full(len(left), cause, np.int64))
            lanes.append(np.full(len(left), other, np.int64))
            active = intervals.union(active, own)
        claimed = intervals.union(claimed, active)
    none = [np.zeros(0, np.int64)]
    start = np.concatenate(starts or none)
    by_time = np.argsort(start, kind="stable")
    return Activity(
        start[by_time],
        np.concatenate(ends or none)[by_time],
        np.concatenate(causes or none)[by_time],
        np.concatenate(lanes or none)[by_time],
    )
