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
import numpy.typing as npt
import polars as pl

from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import HostEvents, Stretches, feeding_lanes, host_events
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.model import Trace

_MOST_OTHERS = 8  # threads that one may be waiting for


@dataclass(frozen=True)
class Activity:
    """What one launching thread did, or waited for.

    Attributes:
        starts: Starts of stretches, sorted and disjoint; what lies between them is `PYTHON`.
        causes: The `HostCause` of each; `LAUNCH` counts as `DISPATCH`.
    """

    starts: Int64Array
    ends: Int64Array
    causes: npt.NDArray[np.int8]
    lanes: npt.NDArray[np.int32]


@dataclass(frozen=True)
class HostActivity:
    """The activity of every thread that launched GPU work.

    Attributes:
        outermost: For each thread and cause the events that make it up and lie in no other of the
            same cause: event number, start; sorted by start. Empty if they were not asked for.
    """

    by_lane: dict[int, Activity]
    outermost: dict[tuple[int, int], tuple[Int64Array, Int64Array]]
    has_stacks: bool

    def event_at(
        self, lane: npt.NDArray[np.int32], cause: npt.NDArray[np.int8], times: Int64Array
    ) -> Int64Array:
        """For each moment the outermost event of that cause on that thread; -1: none."""
        found = np.full(len(times), -1, np.int64)
        for (one_lane, one_cause), (events, starts) in self.outermost.items():
            mine = np.nonzero((lane == one_lane) & (cause == one_cause))[0]
            if len(mine):
                place = np.searchsorted(starts, times[mine], side="right") - 1
                found[mine] = np.where(place >= 0, events[np.maximum(place, 0)], -1)
        return found


def host_activity(trace: Trace, work: pl.DataFrame, *, with_events: bool = True) -> HostActivity:
    """Find out what the threads did that launched this GPU work.

    Args:
        work: GPU work with its launch (see `gpu_work`).
        with_events: Whether the events are needed that explain the activity.
    """
    order = feeding_lanes(trace, work)
    events = host_events(trace, tuple(sorted(order)))
    did = {lane: _with_launches_as_dispatch(events.stretches(lane)) for lane in order}
    by_lane = {lane: _with_others(lane, order, did) for lane in order}
    outermost = _outermost(events, order) if with_events else {}
    return HostActivity(by_lane, outermost, events.has_stacks)


def _with_launches_as_dispatch(stretches: Stretches) -> Stretches:
    """The same time with `LAUNCH` as `DISPATCH`; what then belongs together is one stretch."""
    starts, ends, causes = stretches.starts, stretches.ends, stretches.causes
    causes = np.where(causes == HostCause.LAUNCH, np.int8(HostCause.DISPATCH), causes)
    is_dispatch = causes == HostCause.DISPATCH
    continues = is_dispatch[1:] & is_dispatch[:-1] & (starts[1:] == ends[:-1])
    begins, finishes = (np.ones(len(causes), np.bool_) for _ in range(2))
    begins[1:] = finishes[:-1] = ~continues
    return Stretches(starts[begins], ends[finishes], causes[begins])


def _outermost(
    events: HostEvents, lanes: list[int]
) -> dict[tuple[int, int], tuple[Int64Array, Int64Array]]:
    table = events.table
    lane, cause = table["lane_id"].to_numpy(), table["cause"].to_numpy()
    cause = np.where(cause == HostCause.LAUNCH, np.int8(HostCause.DISPATCH), cause)
    start, end, event = (table[name].to_numpy() for name in ("start_ns", "end_ns", "event"))
    found = {}
    for one in lanes:
        is_mine = lane == one
        for code in distinct_groups(cause[is_mine]):
            rows = np.flatnonzero(is_mine & (cause == code))
            ends = gather(end, rows)
            is_outer = np.ones(len(rows), np.bool_)
            is_outer[1:] = ends[1:] > np.maximum.accumulate(ends)[:-1]
            rows = rows[is_outer]
            found[one, code] = (event[rows], start[rows])
    return found


def _with_others(lane: int, order: list[int], did: dict[int, Stretches]) -> Activity:
    """What a thread does, and where it does nothing, what the others do."""
    own = did[lane]
    parts = [(own, lane)]
    claimed = intervals.merge(own.starts, own.ends)
    for other in order[:_MOST_OTHERS]:
        theirs = did[other]
        if other == lane or not len(theirs.starts):
            continue
        free = intervals.complement(claimed, int(theirs.starts[0]), int(theirs.ends[-1]))
        active = intervals.Intervals(theirs.starts, theirs.ends)
        _, row, starts, ends = intervals.clip_by_windows(active, free.starts, free.ends)
        parts.append((Stretches(starts, ends, theirs.causes[row]), other))
        claimed = intervals.union(claimed, intervals.merge(theirs.starts, theirs.ends))
    if len(parts) == 1:
        lanes = np.broadcast_to(np.int32(lane), len(own.starts))
        return Activity(own.starts, own.ends, own.causes, lanes)
    start = np.concatenate([one.starts for one, _ in parts])
    by_time = np.argsort(start, kind="stable")
    return Activity(
        start[by_time],
        np.concatenate([one.ends for one, _ in parts])[by_time],
        np.concatenate([one.causes for one, _ in parts])[by_time],
        np.concatenate([np.full(len(one.starts), of, np.int32) for one, of in parts])[by_time],
    )
