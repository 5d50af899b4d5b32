"""The host's side of the graph of a step: pieces of threads, and what each had to wait for.

A thread's time is cut where something else depends on it (a launch has been issued, another thread
is handed the work) and where it depends on something else (a blocking call returns, another thread
hands the work back). What lies between two cuts is a piece. Waiting is no piece: the piece after it
simply cannot begin before what was waited for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.arrays.ordering import by_group_and_time, distinct_groups

CLOCK_SKEW_NS = 2_000
"""By how much the clocks of host and device may disagree in one file."""
_NEVER = np.iinfo(np.int64).min


def distinct(values: Int64Array) -> Int64Array:
    """Sorted distinct values; by sorting, for they mostly stand in order.

    numpy's hashing is slow where all differ.
    """
    ordered = np.sort(values, kind="stable")
    if not len(ordered):
        return ordered
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


@dataclass(frozen=True)
class Handovers:
    """Bursts of work on other threads, row for row.

    Attributes:
        back_ns: When the main thread had what it waited for.
        is_waited_for: Whether the main thread did nothing meanwhile, that is, waited.
    """

    lane: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    back_ns: Int64Array
    is_waited_for: BoolArray


def find_handovers(activity: pl.DataFrame, main_lane: int, window: tuple[int, int]) -> Handovers:
    """Which bursts of work other threads did, and whether the main thread waited for them.

    Operators and calls of another thread that begin between two moments of activity of the main
    thread (an operator or call begins or ends) are one burst. The main thread waited for it, as
    `backward()` waits for the engine, if the other thread was at work for most of the time until
    the main thread stirred again; it waited for what was done by then.

    Args:
        activity: lane_id, start_ns, end_ns of operators and calls of the threads in question.
        window: Start and end of the time in question.
    """
    lane, start, end = (activity[name].to_numpy() for name in ("lane_id", "start_ns", "end_ns"))
    is_main = lane == main_lane
    # Threads hold their events more or less in order, which these sorts make use of.
    begins, ends = (np.sort(times[is_main], kind="stable") for times in (start, end))
    others = np.nonzero(~is_main & (start >= window[0]) & (start < window[1]))[0]
    others = gather(others, by_group_and_time(lane[others], start[others]))
    lane, start, end = (gather(column, others) for column in (lane, start, end))
    begun, ended = (np.searchsorted(times, start, "right") for times in (begins, ends))
    stir = np.minimum(
        np.minimum(
            gather(np.append(begins, window[1]), begun),
            gather(np.append(ends, window[1]), ended),
        ),
        window[1],
    )
    done = np.where(end <= stir + CLOCK_SKEW_NS, np.minimum(end, stir), _NEVER)
    # Within a lane the events of a burst stand together, the first to begin in front.
    continues = (lane[1:] == lane[:-1]) & (begun[1:] == begun[:-1]) & (ended[1:] == ended[:-1])
    first = np.nonzero(np.append(True, ~continues)[: len(lane)])[0]
    lane, start, stir = lane[first], start[first], stir[first]
    if len(first):
        end, done = np.maximum.reduceat(end, first), np.maximum.reduceat(done, first)
    back = np.where(done == _NEVER, start, done)
    is_over = end <= stir + CLOCK_SKEW_NS
    is_waited_for = is_over | (2 * (back - start) > stir - start)
    return Handovers(
        lane.astype(np.int64),
        start,
        np.where(is_over, back, end),
        back,
        is_waited_for,
    )


@dataclass(frozen=True)
class Pieces:
    """Pieces of host threads, sorted by lane, then start; those of a lane do not overlap."""

    lane: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array

    def __len__(self) -> int:
        return len(self.lane)

    def within(self, lanes: Int64Array, starts: Int64Array, ends: Int64Array) -> BoolArray:
        """Whether each piece begins within one of some spans of its thread."""
        inside = np.zeros(len(self), np.bool_)
        for lane in distinct_groups(lanes):
            first, last = self._rows_of(lane)
            mine = lanes == lane
            spans = intervals.merge(starts[mine], ends[mine])
            inside[first:last] = intervals.contains(spans, self.start_ns[first:last])
        return inside

    def _rows_of(self, lane: int) -> tuple[int, int]:
        first = int(np.searchsorted(self.lane, lane, side="left"))
        return first, int(np.searchsorted(self.lane, lane, side="right"))

    def ending_by(self, lanes: Int64Array, times: Int64Array) -> Int64Array:
        """For each lane and moment the last piece that has ended by then; -1: none."""
        return self._find(lanes, times, want_next=False)

    def starting_from(self, lanes: Int64Array, times: Int64Array) -> Int64Array:
        """For each lane and moment the first piece that starts then or later; -1: none."""
        return self._find(lanes, times, want_next=True)

    def _find(self, lanes: Int64Array, times: Int64Array, *, want_next: bool) -> Int64Array:
        found = np.full(len(times), -1, np.int64)
        for lane in distinct_groups(lanes):
            rows = np.nonzero(lanes == lane)[0]
            first, last = self._rows_of(lane)
            if first == last:
                continue
            if want_next:
                place = first + np.searchsorted(self.start_ns[first:last], times[rows])
                found[rows] = np.where(place < last, place, -1)
            else:
                ended = np.searchsorted(self.end_ns[first:last], times[rows], "right")
                found[rows] = np.where(ended > 0, first + ended - 1, -1)
        return found


def cut_into_pieces(
    active: dict[int, Intervals], cut_lanes: Int64Array, cut_times: Int64Array
) -> Pieces:
    """Cut the active time of each thread at the given moments.

    Args:
        active: For each lane the time in which it works; it waits, or has nothing to do, in the
            rest.
    """
    lanes, starts, ends = [], [], []
    for lane in sorted(active):
        own = active[lane]
        if not len(own):
            continue
        cuts = cut_times[cut_lanes == lane]
        edges = distinct(np.concatenate((own.starts, own.ends, cuts)))
        begin, end = edges[:-1], edges[1:]
        inside = intervals.contains(own, begin)
        lanes.append(np.full(int(inside.sum()), lane, np.int64))
        starts.append(begin[inside])
        ends.append(end[inside])
    if not lanes:
        none = np.zeros(0, np.int64)
        return Pieces(none, none, none)
    return Pieces(np.concatenate(lanes), np.concatenate(starts), np.concatenate(ends))


def add_moments(pieces: Pieces, lane: int, times: Int64Array, wait_ends: Int64Array) -> Pieces:
    """Add pieces without duration where a thread comes out of one wait and goes into the next.

    Args:
        times: When it goes into a wait.
        wait_ends: When it comes out of one; a wait that took no time may begin where a piece ends,
            but with other weights it would take some.
    """
    last = pieces.ending_by(np.full(len(times), lane, np.int64), times)
    is_missing = (last < 0) | (pieces.end_ns[np.maximum(last, 0)] < times) if len(pieces) else True
    is_missing |= np.isin(times, wait_ends)
    missing = np.unique(times[np.broadcast_to(is_missing, times.shape)])
    lanes = np.concatenate((pieces.lane, np.full(len(missing), lane, np.int64)))
    starts = np.concatenate((pieces.start_ns, missing))
    ends = np.concatenate((pieces.end_ns, missing))
    order = by_group_and_time(lanes, starts, ends)
    return Pieces(lanes[order], starts[order], ends[order])


def active_time(
    window: tuple[int, int],
    main_lane: int,
    handovers: Handovers,
    wait_lanes: Int64Array,
    wait_starts: Int64Array,
    wait_ends: Int64Array,
    lanes: tuple[int, ...],
) -> dict[int, Intervals]:
    """When each thread worked: not while it waited, and other threads only in their bursts."""
    active = {}
    for lane in lanes:
        mine = wait_lanes == lane
        waits = intervals.merge(wait_starts[mine], wait_ends[mine])
        if lane == main_lane:
            given = handovers.is_waited_for
            away = intervals.merge(handovers.start_ns[given], handovers.back_ns[given])
            waits = intervals.union(waits, away)
            whole = intervals.merge([window[0]], [window[1]])
        else:
            bursts = handovers.lane == lane
            whole = intervals.clip(
                intervals.merge(handovers.start_ns[bursts], handovers.end_ns[bursts]), *window
            )
        active[lane] = intervals.difference(whole, waits)
    return active
