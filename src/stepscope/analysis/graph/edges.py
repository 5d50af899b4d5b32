"""The edges of the graph of a step; what each kind means stands in `step_graph`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analysis.graph.batch_arrivals import BatchArrivals
from stepscope.analysis.graph.blocking_calls import Resolved
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.launch_queue import LaunchQueue
from stepscope.analysis.graph.sync_records import RecordedWaits
from stepscope.analysis.graph.threads import CLOCK_SKEW_NS, Handovers, Pieces
from stepscope.analysis.graph.work import StepWork
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.ordering import by_group_and_time

_LATE_NS = 10_000
"""A stream that idles for longer was waiting for something."""
_CLOSE_NS = 20_000
"""How soon after the end of other work that which waited for it begins."""
_MOST_STREAMS = 32


@dataclass(frozen=True)
class Edges:
    """Edges between rows: first those of the GPU work, then those of the pieces.

    Attributes:
        source: Row that each edge leaves; -1: the origin.
        call: The call that made it; -1: none.
        delay_ns: Its delay, from the end of the source, where that is known; else the least.
        is_carried: Whether the source is that of the steps before, if the same steps come again
            and again.
    """

    source: Int64Array
    target: Int64Array
    kind: npt.NDArray[np.int8]
    call: Int64Array
    delay_ns: Int64Array
    is_carried: BoolArray


class _Collector:
    def __init__(self) -> None:
        self._parts: list[tuple[npt.NDArray[Any], ...]] = []

    def add(
        self,
        source: npt.ArrayLike,
        target: Int64Array,
        kind: EdgeKind,
        delay_ns: npt.ArrayLike = 0,
        *,
        call: npt.ArrayLike = -1,
        is_carried: bool = False,
    ) -> None:
        """Keep the edges whose target exists."""
        columns = (source, target, kind.value, call, delay_ns, is_carried)
        part = tuple(np.broadcast_to(column, target.shape) for column in columns)
        valid = target >= 0
        self._parts.append(part if valid.all() else tuple(column[valid] for column in part))

    def add_between(
        self,
        source: Int64Array,
        target: Int64Array,
        kind: EdgeKind,
        call: npt.ArrayLike = -1,
    ) -> None:
        """Keep the edges both of whose ends exist."""
        self.add(source, np.where(source >= 0, target, -1), kind, call=call)

    def edges(self) -> Edges:
        types = (np.int64, np.int64, np.int8, np.int64, np.int64, np.bool_)
        return Edges(
            *(
                np.concatenate(column, dtype=kind, casting="unsafe")
                for column, kind in zip(zip(*self._parts, strict=True), types, strict=True)
            )
        )


def find_edges(
    pieces: Pieces,
    work: StepWork,
    resolved: Resolved,
    handovers: Handovers,
    recorded: RecordedWaits,
    *,
    main_lane: int,
    origin_ns: int,
) -> Edges:
    """All edges of a graph."""
    found = _Collector()
    base = len(work)

    def piece(rows: Int64Array) -> Int64Array:
        return np.where(rows >= 0, base + rows, -1)

    same_thread = np.nonzero(pieces.lane[1:] == pieces.lane[:-1])[0]
    found.add_between(base + same_thread, base + same_thread + 1, EdgeKind.THREAD)

    linked = np.nonzero(work.call >= 0)[0]
    issuing = pieces.ending_by(work.call_lane[linked], work.issue_ns[linked])
    found.add_between(piece(issuing), linked, EdgeKind.LAUNCH, work.call[linked])

    same_stream = np.nonzero(work.lane[1:] == work.lane[:-1])[0]
    found.add_between(same_stream, same_stream + 1, EdgeKind.STREAM)

    idle_before = np.full(base, np.iinfo(np.int64).max)
    idle_before[same_stream + 1] = work.start_ns[same_stream + 1] - work.end_ns[same_stream]
    lost = np.nonzero((work.call < 0) & (idle_before > _LATE_NS))[0]
    main = np.full(len(lost), main_lane, np.int64)
    found.add_between(piece(pieces.ending_by(main, work.start_ns[lost])), lost, EdgeKind.LAUNCH)

    returning = pieces.starting_from(resolved.wait_lane, resolved.wait_end_ns)
    found.add_between(resolved.wait_work, piece(returning), EdgeKind.SYNC, resolved.wait_call)

    main = np.full(len(handovers.lane), main_lane, np.int64)
    found.add_between(
        piece(pieces.ending_by(main, handovers.start_ns)),
        piece(pieces.starting_from(handovers.lane, handovers.start_ns)),
        EdgeKind.HANDOVER,
    )
    back = handovers.is_waited_for
    found.add_between(
        piece(pieces.ending_by(handovers.lane[back], handovers.back_ns[back])),
        piece(pieces.starting_from(main[back], handovers.back_ns[back])),
        EdgeKind.HANDOVER,
    )
    found.add_between(recorded.awaited, recorded.waiting, EdgeKind.WAIT)
    _add_stream_waits(found, work, resolved, recorded)
    if not recorded.are_complete:
        _add_inferred_waits(found, work, idle_before)
    first, floor_ns = _backlog(work, origin_ns)
    # The device still had to do work from before.
    found.add(-1, first, EdgeKind.ORIGIN, floor_ns)
    return found.edges()


def find_fixed_edges(
    pieces: Pieces,
    work: StepWork,
    resolved: Resolved,
    handovers: Handovers,
    queue: LaunchQueue,
    arrivals: BatchArrivals,
    *,
    main_lane: int,
    origin_ns: int,
    host_window: tuple[int, int],
) -> Edges:
    """Edges with known delays: arrivals, room in launch queues, and what joins repeated steps.

    Args:
        host_window: Start and end of the steps on the host.
    """
    found = _Collector()
    base = len(work)

    def piece(rows: Int64Array) -> Int64Array:
        return np.where(rows >= 0, base + rows, -1)

    def main(count: int) -> Int64Array:
        return np.full(count, main_lane, np.int64)

    # A wait for a batch is a piece that takes no time in a replay, and begins when it arrives.
    waits = piece(pieces.ending_by(main(len(arrivals)), arrivals.end_ns))
    for is_carried in (False, True):
        rows = np.flatnonzero(arrivals.is_carried == is_carried)
        source, after_ns = waits[arrivals.source[rows]], arrivals.after_ns[rows]
        found.add(source, waits[rows], EdgeKind.ARRIVAL, after_ns, is_carried=is_carried)
    found.add(-1, waits[:1], EdgeKind.ARRIVAL, arrivals.end_ns[:1] - origin_ns)
    begun = arrivals.of_epochs
    firsts, waits = (
        piece(pieces.ending_by(main(len(begun)), ns)) for ns in (begun.first_ns, begun.end_ns)
    )
    found.add(firsts, waits, EdgeKind.ARRIVAL, begun.end_ns - begun.first_ns)

    following = piece(pieces.starting_from(queue.lane, queue.after_ns))
    leaves = np.where(queue.work >= 0, queue.leaves_ns, queue.leaves_ns - origin_ns)
    found.add(queue.work, following, EdgeKind.QUEUE, leaves)
    following = piece(pieces.starting_from(queue.previous_lane, queue.previous_after_ns))
    lasting = work.end_ns[queue.previous_work] - work.start_ns[queue.previous_work]
    found.add(queue.previous_work, following, EdgeKind.QUEUE, -lasting, is_carried=True)

    # The same steps again: each thread and stream goes on where it was.
    mine = np.nonzero((pieces.lane == main_lane) & (pieces.start_ns >= host_window[0]))[0]
    first_piece = piece(mine[:1])
    found.add(piece(mine[-1:]), first_piece, EdgeKind.THREAD, 0, is_carried=True)
    streams = np.array(work.streams(), np.int64).reshape(-1, 2)
    last_work = streams[:, 1] - 1
    found.add(last_work, streams[:, 0], EdgeKind.STREAM, 0, is_carried=True)
    lanes, ends = resolved.wait_lane, resolved.wait_end_ns
    again = resolved.carried_wait
    returning = piece(pieces.starting_from(lanes[again], ends[again]))
    call = resolved.wait_call[again]
    found.add(resolved.carried_work, returning, EdgeKind.SYNC, 0, call=call, is_carried=True)
    is_last = (lanes == main_lane) & (pieces.starting_from(lanes, ends) < 0)
    for row in np.nonzero(is_last)[0].tolist():
        call = resolved.wait_call[row]
        work_row = resolved.wait_work[row]
        found.add(work_row, first_piece, EdgeKind.SYNC, 0, call=call, is_carried=True)
    back = np.nonzero(handovers.is_waited_for)[0]
    back = back[pieces.starting_from(main(len(back)), handovers.back_ns[back]) < 0]
    for row in piece(pieces.ending_by(handovers.lane[back], handovers.back_ns[back])).tolist():
        if row >= 0:
            found.add(row, first_piece, EdgeKind.HANDOVER, 0, is_carried=True)
    # What the host waited for before the devices began with these steps is the steps before.
    backlog = resolved.backlog
    on_main = main(len(backlog.end_ns))
    has_waited = backlog.end_ns > backlog.start_ns
    waits = piece(pieces.ending_by(on_main, backlog.end_ns))
    seen = np.where(has_waited, waits, -1)
    found.add(-1, seen, EdgeKind.SYNC, backlog.end_ns - origin_ns, call=backlog.call)
    after = piece(pieces.starting_from(on_main, backlog.end_ns))
    for row in last_work.tolist():
        held = np.where(has_waited, waits, after)
        found.add(row, held, EdgeKind.SYNC, 0, call=backlog.call, is_carried=True)
    own_call = backlog.call[backlog.own]
    found.add(backlog.own_work, after[backlog.own], EdgeKind.SYNC, 0, call=own_call)
    return found.edges()


def _backlog(work: StepWork, origin_ns: int) -> tuple[Int64Array, Int64Array]:
    """First work of streams that were still busy with earlier work, and for how long they were."""
    first = np.array([row for row, _ in work.streams()], np.int64)
    busy_until = np.minimum(work.earlier_end_ns[first], work.start_ns[first])
    busy = busy_until > origin_ns
    return first[busy], busy_until[busy] - origin_ns


def _add_stream_waits(
    found: _Collector, work: StepWork, resolved: Resolved, recorded: RecordedWaits
) -> None:
    """Waits between streams that the host asked for, where no record says what was waited for."""
    streams = work.streams()
    unrecorded = ~np.isin(resolved.stream_wait_call, recorded.calls)
    wait_lane, wait_ns = resolved.stream_wait_lane[unrecorded], resolved.stream_wait_ns[unrecorded]
    if len(streams) < 2 or not len(wait_ns) + len(recorded.unexplained):
        return
    rows = np.nonzero(work.call >= 0)[0]
    order = rows[
        by_group_and_time(work.call_lane[rows], work.call_start_ns[rows], work.start_ns[rows])
    ]
    previous_call = np.concatenate(([-1], work.call[order][:-1]))
    fresh = work.call[order] != previous_call
    # What one call launched (a graph) waits as one: all of it looks at the launch before the call.
    group = np.cumsum(fresh) - 1
    heads = order[fresh]
    since = np.full(len(heads), np.iinfo(np.int64).min)
    same_lane = np.nonzero(work.call_lane[heads[1:]] == work.call_lane[heads[:-1]])[0]
    since[same_lane + 1] = work.call_start_ns[heads[same_lane]]
    asked = np.zeros(len(heads), np.bool_)
    for lane in np.unique(wait_lane):
        times = wait_ns[wait_lane == lane]
        mine = work.call_lane[heads] == lane
        last = np.searchsorted(times, work.call_start_ns[heads]) - 1
        asked |= mine & (last >= 0) & (times[np.maximum(last, 0)] > since)
    waits = np.zeros(len(work), np.bool_)
    waits[order[asked[group]]] = True
    waits[recorded.unexplained] = True
    waiting = np.flatnonzero(waits)
    for first, last_row in sorted(streams, key=lambda s: s[0] - s[1])[:_MOST_STREAMS]:
        others = waiting[
            ((waiting < first) | (waiting >= last_row))
            & (work.device[waiting] == work.device[first])
        ]
        launched = np.maximum.accumulate(work.call_start_ns[first:last_row])
        before = first + np.searchsorted(launched, work.call_start_ns[others]) - 1
        known = before >= first
        in_time = known & (
            work.end_ns[np.maximum(before, 0)] <= work.start_ns[others] + CLOCK_SKEW_NS
        )
        found.add_between(before[in_time], others[in_time], EdgeKind.WAIT)


def _add_inferred_waits(found: _Collector, work: StepWork, idle_before: Int64Array) -> None:
    """Waits between streams that are inferred from times alone."""
    late = (idle_before > _LATE_NS) & (work.start_ns - work.issue_ns > _CLOSE_NS)
    rows = np.nonzero(late)[0]
    if not len(rows) or len(work.streams()) < 2:
        return
    by_end = np.argsort(work.end_ns, kind="stable")
    ends = work.end_ns[by_end]
    place = np.searchsorted(ends, work.start_ns[rows], side="right") - 1
    target = np.full(len(rows), -1, np.int64)
    searching = np.arange(len(rows))
    for _ in range(16):
        searching = searching[place[searching] >= 0]
        candidate = by_end[place[searching]]
        near = work.start_ns[rows[searching]] - work.end_ns[candidate] <= _CLOSE_NS
        searching, candidate = searching[near], candidate[near]
        if not len(searching):
            break
        fits = (
            (work.lane[candidate] != work.lane[rows[searching]])
            & (work.call_start_ns[candidate] <= work.call_start_ns[rows[searching]])
            & (work.device[candidate] == work.device[rows[searching]])
        )
        target[searching[fits]] = candidate[fits]
        searching = searching[~fits]
        place[searching] -= 1
    found.add_between(target, rows, EdgeKind.WAIT)
