"""Builds the graph of the steps of a trace; what it is stands in `step_graph`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.runtime_calls import harness_synchronisations
from stepscope.analysis.graph.batch_arrivals import BatchArrivals, find_arrivals
from stepscope.analysis.graph.blocking_calls import read_calls, resolve_calls
from stepscope.analysis.graph.edges import Edges, find_edges, find_fixed_edges
from stepscope.analysis.graph.kinds import EdgeKind, NodeKind
from stepscope.analysis.graph.launch_queue import find_launch_queue
from stepscope.analysis.graph.steady_state import with_steady_state
from stepscope.analysis.graph.step_graph import CARRIED, ORIGIN, StepGraph, rows_of_steps
from stepscope.analysis.graph.sync_records import read_sync_records, recorded_waits
from stepscope.analysis.graph.threads import (
    Pieces,
    active_time,
    add_moments,
    cut_into_pieces,
    find_handovers,
)
from stepscope.analysis.graph.work import (
    NO_THREAD,
    StepWork,
    choose_steps,
    device_start,
    main_lane_of,
    read_work,
    whole_window,
)
from stepscope.analysis.host.events import HostEvents, host_events
from stepscope.analysis.host.steady_steps import steady_steps, tail_of
from stepscope.analysis.host.waits import epoch_starts
from stepscope.analysis.record.pace import RecordedPace
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UsageError
from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import BoolArray, Int32Array, Int64Array
from stepscope.trace.arrays.ordering import by_group_and_time, distinct_groups
from stepscope.trace.model import Trace

_FAR_NS = 50_000  # longer delays have a reason that the graph does not know
_CLEAR_NS = 20_000
_ALIKE_NS = 500  # clocks and latencies differ by as much
_LONG_AGO_NS = -(1 << 61)
_MANY_SKEWED = 0.05
"""Share of the launched work that began before its launch: more, and the clocks are to blame."""
_WITH_TYPICAL_DELAYS = (EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.WAIT)


def assemble(
    chosen: pl.DataFrame,
    window: tuple[int, int],
    main_lane: int,
    pieces: Pieces,
    work: StepWork,
    fixed: Edges,
    is_elastic: BoolArray,
    edges: Edges,
    host: HostEvents,
    arrivals: BatchArrivals,
    *,
    begin_ns: int,
    host_window: tuple[int, int],
    mean_step_ns: int,
) -> StepGraph:
    """Put nodes into order, edges by target, and settle the delays: see `StepGraph`.

    What is no longer needed is dropped on the way, as edges and nodes of a large trace take most of
    the memory at a time when its derived columns are in memory as well.
    """
    number = len(work) + len(pieces)
    start = np.concatenate((work.start_ns, pieces.start_ns))
    end = np.concatenate((work.end_ns, pieces.end_ns))
    issued = np.concatenate((work.issue_ns, pieces.start_ns))
    order = by_group_and_time(None, start, end, issued)
    del issued
    place = np.empty(number + 1, np.int64)
    place[order] = np.arange(number)
    place[ORIGIN] = ORIGIN  # -1: the last place, which is no node's
    source = place[edges.source]
    target = place[edges.target]
    kind, call, floor = edges.kind, edges.call.astype(np.int32), edges.delay_ns
    fixed_source, fixed_target = place[fixed.source], place[fixed.target]
    holds = fixed.is_carried | (fixed_source < fixed_target)
    fixed_source, fixed_target = fixed_source[holds], fixed_target[holds]
    fixed_source = np.where(fixed.is_carried[holds], CARRIED - fixed_source, fixed_source)
    del place, edges
    forward = source < target
    if not forward.all():
        source, target = source[forward], target[forward]
        kind, call, floor = kind[forward], call[forward], floor[forward]

    has_edge = np.zeros(number, np.bool_)
    has_edge[target] = True
    loose = np.nonzero(~has_edge)[0]
    source = np.concatenate((source, np.full(len(loose), ORIGIN, np.int64)))
    target = np.concatenate((target, loose))
    kind = np.concatenate((kind, np.full(len(loose), EdgeKind.ORIGIN, np.int8)))
    call = np.concatenate((call, np.full(len(loose), -1, np.int32)))
    floor = np.concatenate((floor, np.zeros(len(loose), np.int64)))
    # Edges of known delay come last: of several that bind a node, the first is on the path.
    is_fixed = np.zeros(len(source) + len(fixed_target), np.bool_)
    is_fixed[len(source) :] = True
    source = np.concatenate((source, fixed_source))
    target = np.concatenate((target, fixed_target))
    kind = np.concatenate((kind, fixed.kind[holds]))
    call = np.concatenate((call, fixed.call[holds].astype(np.int32)))
    floor = np.concatenate((floor, fixed.delay_ns[holds]))
    first_edge = np.zeros(number + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=number), out=first_edge[1:])
    by_target = np.argsort(target, kind="stable")
    source, target = gather(source, by_target), gather(target, by_target)
    kind, call = gather(kind, by_target), gather(call, by_target)
    floor, is_fixed = gather(floor, by_target), gather(is_fixed, by_target)
    del has_edge, loose, forward, by_target

    start, end = gather(start, order), gather(end, order)
    leaves = np.append(end, window[0])[np.maximum(source, ORIGIN)] + floor
    leaves[is_fixed] = _LONG_AGO_NS  # binds nothing
    node_kind = gather(np.concatenate((work.kind, np.zeros(len(pieces), np.int8))), order)
    is_copy = np.isin(node_kind, (NodeKind.MEMCPY, NodeKind.MEMSET))
    delay = _settled_delays(start, target, leaves, kind, first_edge, is_copy) + floor
    delay[is_fixed] = floor[is_fixed]
    bounds = chosen["start_ns"].to_numpy()
    host_step = np.maximum(np.searchsorted(bounds, pieces.start_ns, "right") - 1, 0)
    step = gather(_narrow(work.step, host_step), order)
    lane = gather(_narrow(work.lane, pieces.lane), order)
    event = _narrow(work.event, np.full(len(pieces), -1))
    step_rows = rows_of_steps(node_kind, lane == main_lane, step)
    launched = len(work) - work.unlinked
    return StepGraph(
        steps=tuple(chosen["step"].to_list()),
        origin_ns=window[0],
        begin_ns=begin_ns,
        host_window=host_window,
        mean_step_ns=mean_step_ns,
        step_ends_ns=step_rows.ends(end, len(chosen), begin_ns),
        main_lane=main_lane,
        start_ns=start,
        end_ns=end,
        kind=node_kind,
        lane=lane,
        event=gather(event, order),
        step=step,
        step_rows=step_rows,
        is_elastic=gather(np.concatenate((np.zeros(len(work), np.bool_), is_elastic)), order),
        first_edge=first_edge,
        source=source,
        delay_ns=delay,
        edge_kind=kind,
        call=call,
        host=host,
        arrivals=arrivals,
        # Single events that seem to begin before their launch tell nothing of the clock.
        clock_lag_ns=work.skew_ns if work.skewed > _MANY_SKEWED * launched else 0,
        notes=_notes(work),
    )


def _narrow(one: Int64Array, other: Int64Array) -> Int32Array:
    """Numbers of events, threads or steps, one after the other."""
    return np.concatenate((one, other), dtype=np.int32, casting="same_kind")


def _notes(work: StepWork) -> tuple[str, ...]:
    """What a reader must know about launches."""
    notes = []
    if work.unlinked:
        notes.append(
            f"{work.unlinked} of {len(work)} GPU events have no launch in the trace: the replay "
            "ties those that began after a gap to what the main thread did just before"
        )
    if work.skewed:
        notes.append(
            f"{work.skewed} GPU events began before their launch by more than the clocks' skew: "
            "their launches are ignored"
        )
    return tuple(notes)


def _settled_delays(
    start: Int64Array,
    target: Int64Array,
    leaves: Int64Array,
    kind: npt.NDArray[np.int8],
    first_edge: Int64Array,
    is_copy: BoolArray,
) -> Int64Array:
    """The delay of each edge, so that every node starts when it was measured to.

    Args:
        start: Measured start of each node.
        target: Node that each edge leads to, sorted.
        leaves: Measured end of the node that each edge leaves.
        kind: `EdgeKind` of each edge.
        is_copy: Whether each node is one of the device's memory.
    """
    # Edges stand by their targets: to repeat is quicker than to gather.
    edges = np.diff(first_edge)
    slack = np.repeat(start, edges) - leaves
    if not len(slack):
        return slack
    typical = _typical_delays(slack, leaves, target, kind, first_edge, is_copy)
    fits = np.minimum(typical, slack)
    expected = leaves + typical
    best = np.maximum.reduceat(expected, first_edge[:-1])
    # Of equals the first edge binds; the others may keep what fits.
    candidates = np.nonzero(expected == np.repeat(best, edges))[0]
    first = np.concatenate(([True], np.diff(target[candidates]) != 0))
    binding = candidates[first]
    delay: Int64Array = fits.astype(np.int64)
    delay[binding] = slack[binding]
    return delay


def _typical_delays(
    slack: Int64Array,
    leaves: Int64Array,
    target: Int64Array,
    kind: npt.NDArray[np.int8],
    first_edge: Int64Array,
    is_copy: BoolArray,
) -> Int64Array:
    """For each edge the usual delay of its kind in this trace, of launches apart for copies.

    Copies may begin within their call, and are often clear where no kernel is.
    Taken where it is clear which edge a node waited for: no other leaves within 20 µs before. Where
    it never is, a low quantile of the candidates stands in, for theirs are too long rather than
    too short: but not of those that began as soon after their launch as others do, which waited for
    that.
    """
    typical = np.zeros(len(slack), np.int64)
    latest = np.repeat(np.maximum.reduceat(leaves, first_edge[:-1]), np.diff(first_edge))
    is_close = leaves > latest - _CLEAR_NS
    close_edges = np.add.reduceat(is_close, first_edge[:-1], dtype=np.int64)
    is_near = (leaves == latest) & (slack >= 0) & (slack < _FAR_NS)
    is_explained = np.zeros(len(first_edge) - 1, np.bool_)

    def delay_of(candidates: Int64Array) -> int:
        nodes = target[candidates]
        is_clear = close_edges[nodes] == 1
        if is_clear.any():
            return int(np.median(slack[candidates[is_clear]]))
        others = slack[candidates[~is_explained[nodes]]]
        return int(np.quantile(others, 0.1)) if len(others) else 0

    for which in _WITH_TYPICAL_DELAYS:
        mine = kind == which
        candidates = np.nonzero(mine & is_near)[0]
        typical[mine] = delay_of(candidates)
        if which == EdgeKind.LAUNCH:
            for nodes in (is_copy, ~is_copy):
                own = candidates[nodes[target[candidates]]]
                if len(own):
                    typical[mine & nodes[target]] = delay_of(own)
            is_explained[target[mine & (slack >= 0) & (slack <= typical + _ALIKE_NS)]] = True
    return typical


_LONGEST_NS = 1 << 62
"""Beyond it sums of durations leave 64 bits."""


def build_step_graph(
    trace: Trace, steps: tuple[int, ...] | None = None, pace: RecordedPace | None = None
) -> StepGraph:
    """Build the graph.

    Args:
        steps: Numbers of consecutive steps; default: the steady ones (`host.steady_steps`). A
            trace without steps is taken whole.
        pace: The pace of unrecorded steps, which replays have; default: that of these steps.

    Raises:
        UsageError: A step is not in the trace, or the steps do not follow one another, or the trace
            holds nothing that takes time on a thread, or durations that no clock can have counted.
    """
    chosen, window = choose_steps(trace, steps)
    work = read_work(trace, chosen["step"] if len(chosen) else None)
    main_lane = main_lane_of(trace, work)
    launching = distinct_groups(work.call_lane[work.call >= 0])
    lanes = tuple(sorted(lane for lane in {main_lane, *launching} if lane != NO_THREAD))
    host = host_events(trace, lanes)
    batch_ns = 0 if pace is None else pace.batch_ns
    if pace is not None and len(chosen) and pace.longest_batch_ns > batch_ns:
        shown = find_arrivals(
            trace, host, main_lane, (window[0], window[1] - tail_of(trace, chosen)), len(chosen)
        )
        pace = pace.of_batches(shown.cycle_ns // len(chosen))
        batch_ns = pace.batch_ns
    graph = _graph_of(trace, chosen, window, main_lane, lanes, work, host, batch_ns)
    if pace is not None:
        begun = set(graph.steps).intersection(epoch_starts(trace).steps)
        pace = pace.with_epochs(len(begun), len(graph.steps))
    graph = with_steady_state(graph, pace)
    if not len(graph):
        raise UsageError(f"{trace.path}: holds nothing that took time in the steps asked for")
    if float(graph.dur_ns.sum(dtype=np.float64)) > _LONGEST_NS:
        raise UsageError(f"{trace.path}: durations add up to centuries: the file is damaged")
    return graph


def _graph_of(
    trace: Trace,
    chosen: pl.DataFrame,
    window: tuple[int, int],
    main_lane: int,
    lanes: tuple[int, ...],
    work: StepWork,
    host: HostEvents,
    batch_ns: int,
) -> StepGraph:
    calls = read_calls(trace, lanes, window)
    if not len(chosen):
        window = whole_window(host, work, window)
    else:
        window = (window[0], window[1] - tail_of(trace, chosen))
    host_window = window
    begin_ns = device_start(trace, chosen, work)
    if begin_ns is None:
        begin_ns = window[0]
    window = (min(window[0], begin_ns), window[1])
    activity = host.table["lane_id", "start_ns", "end_ns"].filter(host.table["is_work"])
    handovers = find_handovers(activity, main_lane, window)
    del activity  # it is large, and so is what follows
    records = read_sync_records(trace, work)
    of_harness = harness_synchronisations(trace)
    resolved = resolve_calls(calls, work, records, main_lane, begin_ns, of_harness)
    queue = find_launch_queue(trace, work)
    arrivals = find_arrivals(trace, host, main_lane, host_window, len(chosen), batch_ns)
    active = active_time(
        window,
        main_lane,
        handovers,
        resolved.wait_lane,
        resolved.wait_start_ns,
        resolved.wait_end_ns,
        lanes,
    )
    begun, backlog = arrivals.of_epochs, resolved.backlog
    on_main = np.full(len(arrivals) + len(begun) + len(backlog.call), main_lane, np.int64)
    elastic_lane = np.concatenate((on_main, queue.wait_lane))
    elastic_start = np.concatenate(
        (arrivals.start_ns, begun.start_ns, backlog.start_ns, queue.wait_start_ns)
    )
    elastic_end = np.concatenate((arrivals.end_ns, begun.end_ns, backlog.end_ns, queue.wait_end_ns))
    boundaries = chosen["start_ns"].to_numpy() if len(chosen) else np.zeros(0, np.int64)
    cut_lanes = np.concatenate(
        (
            resolved.cut_lane,
            np.full(2 * len(handovers.lane) + len(boundaries) + len(begun), main_lane, np.int64),
            handovers.lane,
            elastic_lane,
            elastic_lane,
        )
    )
    cut_times = np.concatenate(
        (
            resolved.cut_ns,
            handovers.start_ns,
            handovers.back_ns,
            boundaries,
            begun.first_ns,
            handovers.back_ns,
            elastic_start,
            elastic_end,
        )
    )
    pieces = cut_into_pieces(active, cut_lanes, cut_times)
    ends = resolved.wait_end_ns[resolved.wait_lane == main_lane]
    waits = handovers.start_ns if len(work) else np.append(handovers.start_ns, window[1])
    pieces = add_moments(pieces, main_lane, waits, ends)
    mean_step_ns = window[1] - window[0]
    if len(chosen) or len(work):
        # As every other answer about these steps states it.
        numbers = tuple(chosen["step"].to_list()) if len(chosen) else None
        mean_step_ns = steady_steps(trace, Scope(steps=numbers)).step_ns
    fixed = find_fixed_edges(
        pieces,
        work,
        resolved,
        handovers,
        queue,
        arrivals,
        main_lane=main_lane,
        origin_ns=window[0],
        host_window=host_window,
    )
    is_elastic = pieces.within(elastic_lane, elastic_start, elastic_end)
    return assemble(
        chosen,
        window,
        main_lane,
        pieces,
        work,
        fixed,
        is_elastic,
        find_edges(  # nothing else refers to them, so that they are freed on the way
            pieces,
            work,
            resolved,
            handovers,
            recorded_waits(records, work),
            main_lane=main_lane,
            origin_ns=window[0],
        ),
        host,
        arrivals,
        begin_ns=begin_ns,
        host_window=host_window,
        mean_step_ns=mean_step_ns,
    )
