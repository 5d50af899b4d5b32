"""The nodes of a graph as tables: GPU work, calls of its threads, recomputation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from stepscope.analysis.calls.operator_forest import operator_forest
from stepscope.analysis.calls.parents import operators_of_events
from stepscope.analysis.calls.recomputation import find_recomputed
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.names import events_named, times_of
from stepscope.analysis.selection.scope import EventChoice, Scope
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.arrays.nullable import are_among, filled
from stepscope.trace.arrays.ordering import by_group_and_time
from stepscope.trace.model import Trace


def work_of_nodes(trace: Trace, graph: StepGraph, scope: Scope | None = None) -> pl.DataFrame:
    """The GPU work of a graph, one row per node, in the graph's order.

    Args:
        scope: Devices and events that count; its steps have no influence.

    Returns:
        node, event, name, name_id, kind, group, device, start_ns, end_ns, dur_ns, step (index),
        bytes, launch, op, lane_id.
    """
    nodes = np.nonzero(graph.is_gpu)[0]
    table = pl.DataFrame(
        {
            "node": nodes,
            "event": graph.event[nodes].astype(np.int64),
            "start_ns": graph.start_ns[nodes],
            "end_ns": graph.end_ns[nodes],
            "dur_ns": graph.dur_ns[nodes],
            "step": graph.step[nodes].astype(np.int64),
            "lane_id": graph.lane[nodes].astype(np.int64),
        }
    )
    recorded = recorded_work(trace)
    # Numbers of events and names are row numbers, so gathering replaces joins.
    row_of_event = np.full(trace.event_count, -1, np.int32)
    row_of_event[recorded["event"].to_numpy()] = np.arange(len(recorded), dtype=np.int32)
    said = recorded["name_id", "device", "bytes", "kind", "group", "launch", "op"][
        row_of_event[table["event"].to_numpy()]
    ]
    work = table.hstack(said).hstack([trace.name_rows["name"][said["name_id"]]])
    asked = scope or Scope()
    if asked.devices is not None:
        work = work.filter(pl.col("device").is_in(list(asked.devices)))
    if asked.events is EventChoice.LINKED:
        work = work.drop_nulls("launch")
    return work


def numbers_on_threads(
    trace: Trace, graph: StepGraph, condition: pl.Expr, lanes: Sequence[int] | None = None
) -> Int64Array:
    """The numbers of the events that `spans_of_threads` gives, in their own order."""
    mine = graph.host_lanes
    chosen = mine if lanes is None else mine & set(lanes)
    return events_named(trace, condition, chosen, graph.host_window)


def spans_of_threads(
    trace: Trace, graph: StepGraph, condition: pl.Expr, lanes: Sequence[int] | None = None
) -> pl.DataFrame:
    """Events on the graph's threads that begin within its steps on the host, by their name's row.

    Args:
        condition: Of rows of `names`.

    Returns:
        event, name_id, lane_id, start_ns, end_ns; in order of their starts.
    """
    events = numbers_on_threads(trace, graph, condition, lanes)
    # The graph has read these columns already, and the number of an event is its row.
    columns = trace.columns("name_id", "lane_id", "start_ns", "dur_ns")
    starts = columns["start_ns"].to_numpy()[events]
    if (starts[1:] < starts[:-1]).any():
        order = by_group_and_time(None, starts)
        events, starts = events[order], starts[order]
    return pl.DataFrame(
        {
            "event": events,
            "name_id": columns["name_id"].to_numpy()[events],
            "lane_id": columns["lane_id"].to_numpy()[events],
            "start_ns": starts,
            "end_ns": starts + columns["dur_ns"].to_numpy()[events],
        }
    )


def events_of_threads(trace: Trace, graph: StepGraph, condition: pl.Expr) -> pl.DataFrame:
    """The same as `spans_of_threads`, with `name`, `group` and `op` (the operator around each)."""
    spans = spans_of_threads(trace, graph, condition)
    operators = operators_of_events(trace)[spans["event"]].cast(pl.Int64).alias("op")
    # `name_id` is the row number, so gathering replaces a join.
    names = trace.name_rows["name", "group"]
    return spans.hstack(names[spans["name_id"]]).hstack([operators])


def recomputed_nodes(
    trace: Trace, graph: StepGraph, work: pl.DataFrame
) -> tuple[Intervals, BoolArray]:
    """Host moments of recomputed operators, and which nodes of the graph they launched.

    Args:
        work: Rows of `work_of_nodes`.
    """
    forest = operator_forest(trace)
    rows = find_recomputed(trace).rows
    events = forest.rows["event"].to_numpy()[rows]
    moments = intervals.merge(*times_of(trace, events))
    holder = np.zeros(trace.event_count + 1, np.bool_)
    holder[events] = True
    op = filled(work["op"], trace.event_count)
    nodes = np.zeros(len(graph), np.bool_)
    nodes[work["node"].to_numpy()[holder[op]]] = True
    return moments, nodes


def spans_of_sources(trace: Trace, work: pl.DataFrame) -> Intervals:
    """The host's moments in the operators and calls that launched some rows of `work_of_nodes`."""
    sources = are_among(pl.concat([work["op"], work["launch"]]), trace.event_count)
    return intervals.merge(*times_of(trace, np.flatnonzero(sources)))
