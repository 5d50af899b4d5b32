"""Builds the graph of the steps of a trace; what it is stands in `step_graph`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from stepscope.analysis.calls.edges_of_recording import harness_synchronisations
from stepscope.analysis.graph.assembly import assemble
from stepscope.analysis.graph.batch_arrivals import find_arrivals
from stepscope.analysis.graph.blocking_calls import read_calls
from stepscope.analysis.graph.edges import find_edges, find_fixed_edges
from stepscope.analysis.graph.launch_queue import find_launch_queue
from stepscope.analysis.graph.steady_state import with_steady_state
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.graph.sync_records import read_sync_records, recorded_waits
from stepscope.analysis.graph.threads import (
    active_time,
    add_moments,
    cut_into_pieces,
    find_handovers,
)
from stepscope.analysis.graph.window import (
    NO_THREAD,
    choose_steps,
    device_start,
    main_lane_of,
    measured_step_ns,
    whole_window,
)
from stepscope.analysis.graph.work import StepWork, read_work
from stepscope.analysis.host.epochs import epoch_starts
from stepscope.analysis.host.events import HostEvents, host_events
from stepscope.analysis.host.steady_steps import tail_of
from stepscope.analysis.record.pace import RecordedPace
from stepscope.errors import UsageError
from stepscope.trace.model import Trace

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
    launching = work.launch_lanes
    lanes = tuple(sorted(lane for lane in {main_lane, *launching} if lane != NO_THREAD))
    host = host_events(trace, lanes)
    batch_ns = 0 if pace is None else pace.batch_ns
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
    """Cut the threads into pieces, find the edges, and put the graph together."""
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
    resolved = calls.resolve(work, records, main_lane, begin_ns, of_harness)
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
    has_steps_or_work = len(chosen) or len(work)
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
    graph = assemble(
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
        begin_ns=begin_ns,
        host_window=host_window,
        mean_step_ns=(
            measured_step_ns(trace, chosen) if has_steps_or_work else window[1] - window[0]
        ),
    )
    return replace(
        graph,
        has_batch_pace=arrivals.has_pace,
        waits_for_batches=len(arrivals) > 0,
        rare_waits=arrivals.rare,
    )
