"""Builds the graph of the steps of a trace; what it is stands in `step_graph`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import polars as pl

from stepscope.analysis.graph.assembly import assemble
from stepscope.analysis.graph.blocking_calls import read_calls
from stepscope.analysis.graph.edges import find_edges
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
    main_lane_of,
    tail_of,
    whole_window,
)
from stepscope.analysis.graph.work import StepWork, read_work
from stepscope.analysis.host.events import HostEvents, host_events
from stepscope.errors import UsageError
from stepscope.trace.model import Trace

_LONGEST_NS = 1 << 62
"""Beyond it sums of durations leave 64 bits."""


def build_step_graph(trace: Trace, steps: tuple[int, ...] | None = None) -> StepGraph:
    """Build the graph.

    Args:
        trace: The trace.
        steps: Numbers of consecutive steps; default: all that are not empty, or the longest run of
            them where something else was done between two steps. A trace without steps is taken
            whole.

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
    with ThreadPoolExecutor(1) as beside:
        # Who asks for a graph asks for the moments of each cause too; the graph does not need them.
        claims = beside.submit(host.find_claims)
        graph = _graph_of(trace, chosen, window, main_lane, lanes, work, host)
        claims.result()
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
) -> StepGraph:
    """Cut the threads into pieces, find the edges, and put the graph together."""
    calls = read_calls(trace, lanes, window)
    activity = host.table.filter("is_work")
    tail_ns = 0
    if not len(chosen):
        window = whole_window(host, work, window)
    else:
        tail_ns = tail_of(trace, chosen, activity.filter(pl.col("lane_id") == main_lane))
        window = (window[0], window[1] - tail_ns)
    handovers = find_handovers(activity, main_lane, window)
    records = read_sync_records(trace, work)
    resolved = calls.resolve(work, records)
    active = active_time(
        window,
        main_lane,
        handovers,
        resolved.wait_lane,
        resolved.wait_start_ns,
        resolved.wait_end_ns,
        lanes,
    )
    boundaries = chosen["start_ns"].to_numpy() if len(chosen) else np.zeros(0, np.int64)
    cut_lanes = np.concatenate(
        (
            resolved.cut_lane,
            np.full(2 * len(handovers.lane) + len(boundaries), main_lane, np.int64),
            handovers.lane,
        )
    )
    cut_times = np.concatenate(
        (
            resolved.cut_ns,
            handovers.start_ns,
            handovers.back_ns,
            boundaries,
            handovers.back_ns,
        )
    )
    pieces = cut_into_pieces(active, cut_lanes, cut_times)
    ends = resolved.wait_end_ns[resolved.wait_lane == main_lane]
    pieces = add_moments(pieces, main_lane, handovers.start_ns, ends)
    edges = find_edges(
        pieces,
        work,
        resolved,
        handovers,
        recorded_waits(records, work),
        main_lane=main_lane,
        origin_ns=window[0],
    )
    graph = assemble(chosen, window, main_lane, pieces, work, edges, host)
    if tail_ns:
        note = (
            f"the last step goes on for {tail_ns / 1e6:.1f} ms longer than any other after its "
            "last operator and call: taken for the end of the loop, and left out"
        )
        graph = replace(graph, notes=(*graph.notes, note))
    return graph
