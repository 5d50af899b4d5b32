"""Back-pressure: launch calls that block because the queue of their stream is full.

A driver keeps about a thousand launches per stream that have not started (1,022 to 1,024 were
seen). One more launch blocks its call until the first of them starts. That time is no work of the
host: it ends with the start of GPU work, and shrinks with the GPU work before it.

A launch counts as blocked if its stream has hundreds of unstarted launches when the call returns,
if the call takes longer than such calls usually do, and if most such calls return shortly after
the start of GPU work on the stream, which frees a place. Where a stream's recorded work has not
started yet, work that is not in the file has the queue: then calls are blocked from the one on
after which most take longer than usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.analysis.graph.work import StepWork
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.model import Trace

DEPTH = 1024
"""Unstarted launches that a stream can have, where the trace shows no full queue."""
_FEWEST = 256
_LAUNCH_NS = 5_000  # what a launch takes, where none in the trace finds room
_MOST_NS = 20_000  # what it takes at most without waiting
_LONG_AGO_NS = -(1 << 61)
_BLOCKED_FROM_NS = 3_000
_FREED_WITHIN_NS = 30_000
_MOSTLY = 0.6
_MOST_OF_TIME = 0.5
_FEWEST_BLOCKED = 8
_DEPTHS = 4
"""By how much unstarted launches of a full queue differ from call to call."""
_FEWEST_BEHIND = 32
"""Slow launches on a stream busy with unseen work: more than first launches of a few kernels."""


@dataclass(frozen=True)
class LaunchQueue:
    """The launches that had to wait for a place, and what each launch depends on.

    Attributes:
        lane: Thread of each launch with a dependency.
        after_ns: When its call returned.
        work: Row of the GPU work whose start freed its place; -1: work before these steps.
        leaves_ns: From the end of that work to the moment when it freed a place in the queue: never
            positive. For work before these steps, when the call returned.
        previous_lane: Thread of each launch that depends on work of the steps before, as it would
            be if these steps came again.
        previous_after_ns: When its call returned.
        previous_work: Row of the GPU work in the steps before.
    """

    wait_lane: Int64Array
    wait_start_ns: Int64Array
    wait_end_ns: Int64Array
    lane: Int64Array
    after_ns: Int64Array
    work: Int64Array
    leaves_ns: Int64Array
    previous_lane: Int64Array
    previous_after_ns: Int64Array
    previous_work: Int64Array


class _Stream(NamedTuple):
    """The launches of one stream in order: one row per call.

    Attributes:
        row: The row of that work in these steps; -1: in others.
        is_linked: Whether its call is in the file.
    """

    lane: Int64Array
    call_start_ns: Int64Array
    call_end_ns: Int64Array
    start_ns: Int64Array
    row: Int64Array
    is_linked: BoolArray


def find_launch_queue(trace: Trace, work: StepWork) -> LaunchQueue:
    """Find the launches of some steps that depend on a free place in a queue."""
    parts = [_of_stream(stream, work) for stream in _streams(trace, work)]
    none = np.zeros(0, np.int64)
    columns = [
        np.concatenate([none, *(part[place] for part in parts)])
        for place in range(len(LaunchQueue.__dataclass_fields__))
    ]
    return LaunchQueue(*columns)


def _streams(trace: Trace, work: StepWork) -> list[_Stream]:
    """The launches of each stream that may fill its queue, those of other steps included."""
    everything = recorded_work(trace)["event", "lane_id", "start_ns", "launch"]
    counts = everything.group_by("lane_id").len().filter(pl.col("len") >= _FEWEST_BEHIND)
    row_of_event = np.full(trace.event_count, -1, np.int64)
    row_of_event[work.event] = np.where(work.call >= 0, np.arange(len(work)), -1)
    calls = trace.columns("lane_id", "start_ns", "dur_ns")
    found = []
    for lane in sorted(counts["lane_id"].to_list()):
        mine = everything.filter(pl.col("lane_id") == lane).sort("start_ns", maintain_order=True)
        launch = filled(mine["launch"], -1).astype(np.int64)
        # One call may launch a graph of many kernels: it takes one place.
        first = np.flatnonzero(np.append(True, launch[1:] != launch[:-1]) | (launch < 0))
        launch = launch[first]
        is_linked = launch >= 0
        call_start = np.where(is_linked, calls["start_ns"].to_numpy()[launch], _LONG_AGO_NS)
        call_end = np.where(is_linked, call_start + calls["dur_ns"].to_numpy()[launch], call_start)
        found.append(
            _Stream(
                calls["lane_id"].to_numpy()[launch].astype(np.int64),
                # Work whose launch is not in the file was launched after the work before it.
                np.maximum.accumulate(call_start),
                np.maximum.accumulate(call_end),
                mine["start_ns"].to_numpy()[first],
                row_of_event[mine["event"].to_numpy()[first]],
                is_linked,
            )
        )
    return found


def _of_stream(stream: _Stream, work: StepWork) -> tuple[Int64Array, ...]:
    number = np.arange(len(stream.row))
    started = np.searchsorted(stream.start_ns, stream.call_end_ns, side="right")
    unstarted = number + 1 - started
    most = int(unstarted.max())
    took = stream.call_end_ns - stream.call_start_ns
    freeing = np.maximum(started - 1, 0)
    # A call that returns with the queue full had room from the start of the work before.
    since_free = np.minimum(took, stream.call_end_ns - stream.start_ns[freeing])
    may_be_full = (unstarted >= max(_FEWEST, most - _DEPTHS)) & (started > 0)
    usual = _usual(np.where(may_be_full, since_free, took)[stream.is_linked])
    is_slow = stream.is_linked & (took > usual + _BLOCKED_FROM_NS)
    is_behind = stream.is_linked & (started == 0)
    is_far = is_slow & (unstarted >= _FEWEST)
    is_freed = is_far & ~is_behind
    is_freed &= stream.call_end_ns - stream.start_ns[freeing] < _FREED_WITHIN_NS
    is_full = is_freed.sum() >= max(_FEWEST_BLOCKED, _MOSTLY * (is_far & ~is_behind).sum())
    depth = int(np.median(unstarted[is_freed])) if is_full else max(DEPTH, most)
    # The window may begin with a full queue of work that is not in it, or without launches.
    is_blocked = is_far if is_full else np.zeros(len(number), np.bool_)
    is_blocked = is_blocked | _blocked_behind(stream, is_slow & is_behind, is_behind, usual)
    is_unseen = is_blocked & ~is_freed
    mine = stream.row >= 0
    blocked = np.flatnonzero(is_blocked & mine)
    # A launch that was not blocked had room because the one `depth` before it had started.
    source = np.where(is_blocked, np.where(is_unseen, -1, freeing), number - depth)
    row_of_source = np.where(source >= 0, stream.row[np.maximum(source, 0)], -1)
    within = np.flatnonzero(mine & (row_of_source >= 0))
    outside = np.flatnonzero(mine & (row_of_source < 0) & is_blocked)
    row = stream.row[source[within]]
    freed = np.where(
        is_blocked[within], stream.call_end_ns[within], stream.start_ns[source[within]]
    )
    numbers = number[mine]
    first, last = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, -1)
    before = np.flatnonzero(mine & (number - depth < first))
    place = before - depth + (last + 1 - first)
    before, place = before[place >= first], place[place >= first]
    known = stream.row[place] >= 0
    before, place = before[known], place[known]
    return (
        stream.lane[blocked],
        np.minimum(stream.call_start_ns[blocked] + usual, stream.call_end_ns[blocked]),
        stream.call_end_ns[blocked],
        np.concatenate((stream.lane[within], stream.lane[outside])),
        np.concatenate((stream.call_end_ns[within], stream.call_end_ns[outside])),
        np.concatenate((row, np.full(len(outside), -1))),
        np.concatenate((np.minimum(freed - work.end_ns[row], 0), stream.call_end_ns[outside])),
        stream.lane[before],
        stream.call_end_ns[before],
        stream.row[place],
    )


def _blocked_behind(
    stream: _Stream, is_slow: BoolArray, is_behind: BoolArray, usual_ns: int
) -> BoolArray:
    """Of calls whose stream has not begun with recorded work, those that wait for room.

    From the moment when the queue is full, most of them do; or, where the work before is many short
    kernels, whose places come as fast as calls return, those that do have most of the host's time.
    """
    places = np.flatnonzero(is_slow)
    blocked = np.zeros(len(is_slow), np.bool_)
    if len(places) < _FEWEST_BEHIND:
        return blocked
    slow_from_here = len(places) - np.arange(len(places))
    behind_from_here = np.cumsum(is_behind[::-1])[::-1][places]
    waits_ns = (stream.call_end_ns - stream.call_start_ns)[places] - usual_ns
    waits_from_here = np.cumsum(waits_ns[::-1])[::-1]
    end_ns = stream.call_end_ns[np.flatnonzero(is_behind)[-1]]
    has_most = waits_from_here >= _MOST_OF_TIME * (end_ns - stream.call_start_ns[places])
    full = np.flatnonzero((slow_from_here >= _MOSTLY * behind_from_here) | has_most)
    if len(full) and slow_from_here[full[0]] >= _FEWEST_BEHIND:
        blocked[places[full[0] :]] = True
    return blocked


def _usual(took_ns: Int64Array) -> int:
    quick_ns = float(np.quantile(took_ns, 0.02)) if len(took_ns) else 0.0
    if quick_ns > _MOST_NS:
        return _LAUNCH_NS
    return int(np.median(took_ns[took_ns <= 2 * quick_ns])) if len(took_ns) else 0
