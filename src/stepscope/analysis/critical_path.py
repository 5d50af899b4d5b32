"""The critical path of the steps: what one would have to shorten for them to end earlier.

Walked backwards on the graph of the steps (`step_graph.py`), from what ends last: each node began
when its binding predecessor allowed it to. The path is unbroken in time from the beginning of the
first step to the end of the last, so the time per cause adds up to the step, to the nanosecond.

Causes
    compute, communication, copy, fill: GPU work on the path. Host causes (`host_causes.py`): what a
    thread on the path was doing. launch latency: from a launching call to its work, where nothing
    else held the work up. device gap: from the end of GPU work to the start of what had to wait for
    it. other wait: waits that the graph does not explain.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from stepscope.analysis.graph_edges import EdgeKind
from stepscope.analysis.host_causes import CAUSES, cause_names
from stepscope.analysis.partition import Part, Partition
from stepscope.analysis.scope import AnsweredScope, EventChoice, Scope
from stepscope.analysis.step_graph import ORIGIN, NodeKind, StepGraph, build_step_graph
from stepscope.trace.intervals import Int64Array
from stepscope.trace.model import Trace

GPU_CAUSES = {
    NodeKind.COMPUTE: "compute",
    NodeKind.COMMUNICATION: "communication",
    NodeKind.MEMCPY: "copy",
    NodeKind.MEMSET: "fill",
}
LAUNCH_LATENCY = "launch latency"
DEVICE_GAP = "device gap"
OTHER_WAIT = "other wait"
PATH_CAUSES: tuple[str, ...] = (
    *GPU_CAUSES.values(),
    *(cause.value for cause in CAUSES),
    LAUNCH_LATENCY,
    DEVICE_GAP,
    OTHER_WAIT,
)


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of consecutive steps.

    Attributes:
        scope: What it covers.
        total_ns: From the beginning of the first step to the end of the last.
        causes: Time on the path per cause: cause, total_ns, total_share, the largest first.
        partition: The same, in the order of `PATH_CAUSES`; without GPU work dispatch is called
            operators, for they do the work themselves.
        steps: One row per step and cause: step, cause, total_ns. The causes of a step add up to it.
        segments: The path in order of time: start_ns, end_ns, cause, event (the GPU event; null:
            host or a delay), lane_id (null: a delay). A host segment may hold several causes; it
            then bears the one with the most time.
        kernels: GPU work on the path by name: name, cause, count, total_ns, the longest first.
        notes: What limits the answer.
    """

    scope: AnsweredScope
    total_ns: int
    causes: pl.DataFrame
    partition: Partition = field(metadata={"show": False})
    steps: pl.DataFrame
    segments: pl.DataFrame
    kernels: pl.DataFrame
    notes: tuple[str, ...]


def critical_path(trace: Trace, scope: Scope | None = None) -> CriticalPath:
    """Find the critical path.

    Args:
        trace: The trace.
        scope: Which consecutive steps; devices and the choice of events have no influence, for a
            step depends on all of them.

    Raises:
        UsageError: The steps are not in the trace or do not follow one another.
    """
    asked = scope or Scope()
    found = path_of(build_step_graph(trace, asked.steps), trace, asked)
    return replace(found, notes=(*found.notes, *what_steps_depend_on(asked)))


def what_steps_depend_on(asked: Scope) -> tuple[str, ...]:
    """The note that devices and the choice of events were passed over, if they were asked for."""
    if asked.devices is None and asked.events is EventChoice.ALL:
        return ()
    return ("a step depends on all devices and all GPU events: the answer is about all of them",)


def path_of(graph: StepGraph, trace: Trace, asked: Scope | None = None) -> CriticalPath:
    """The critical path of a graph that has been built."""
    node, edge = _walk(graph)
    starts, ends, owner, code = _segments(graph, node, edge)
    windows = graph.step_starts_ns, graph.step_ends_ns
    first, last, step, row = _clip(starts, ends, *windows)
    totals = _time_per_cause(graph, first, last, owner[row], code[row])
    whole = np.zeros((len(graph.step_ends_ns), len(PATH_CAUSES)), np.int64)
    np.add.at(whole, step, totals)
    numbers = graph.steps or (None,)
    names = _names(graph)
    table = pl.DataFrame(
        {
            "step": pl.Series([n for n in numbers for _ in names], dtype=pl.Int32),
            "cause": list(names) * len(numbers),
            "total_ns": whole.reshape(-1),
        }
    ).filter(pl.col("total_ns") > 0)
    sums = whole.sum(axis=0).tolist()
    parts = tuple(Part(n, t) for n, t in zip(names, sums, strict=True) if t)
    of_segment = np.zeros((len(starts), len(PATH_CAUSES)), np.int64)
    np.add.at(of_segment, row, totals)
    segments = _segment_table(graph, starts, ends, owner, of_segment.argmax(axis=1))
    causes = pl.DataFrame(
        {
            "cause": pl.Series([part.name for part in parts], dtype=pl.String),
            "total_ns": pl.Series([part.total_ns for part in parts], dtype=pl.Int64),
        }
    ).with_columns(total_share=pl.col("total_ns") / max(1, graph.total_ns))
    return CriticalPath(
        scope=AnsweredScope(
            Scope(steps=None if asked is None else asked.steps),
            graph.steps,
            (),
            events=int((segments["event"].is_not_null()).sum()),
        ),
        total_ns=graph.total_ns,
        causes=causes.sort("total_ns", descending=True),
        partition=Partition(parts, graph.total_ns, len(numbers), "critical path of the steps"),
        steps=table,
        segments=segments,
        kernels=_kernels(trace, segments),
        notes=graph.notes,
    )


def _names(graph: StepGraph) -> tuple[str, ...]:
    """What each of `PATH_CAUSES` is called in this graph."""
    first = len(GPU_CAUSES)
    host = cause_names(has_gpu=bool(graph.is_gpu.any()))
    return (*PATH_CAUSES[:first], *host, *PATH_CAUSES[first + len(host) :])


def _walk(graph: StepGraph) -> tuple[Int64Array, Int64Array]:
    """Nodes of the path, the last first, and the binding edge into each."""
    leaves = np.where(graph.source >= 0, graph.end_ns[graph.source], graph.origin_ns)
    binds = leaves + graph.delay_ns == graph.start_ns[graph.target]
    # Of several binding edges the first: rows of a node's edges stand together.
    rows = np.nonzero(binds)[0]
    nodes = graph.target[rows]
    first = np.concatenate(([True], nodes[1:] != nodes[:-1]))
    edge_into = np.full(len(graph), -1, np.int64)
    edge_into[nodes[first]] = rows[first]
    into = edge_into.tolist()
    source = graph.source.tolist()
    path, edges = [], []
    node = _last_node(graph)
    while node != ORIGIN:
        path.append(node)
        edges.append(into[node])
        node = source[into[node]]
    return np.array(path, np.int64), np.array(edges, np.int64)


def _last_node(graph: StepGraph) -> int:
    """What ends when the last step does; of several the last in the graph's order."""
    return int(np.nonzero(graph.end_ns == graph.step_ends_ns[-1])[0][-1])


def _segments(
    graph: StepGraph, node: Int64Array, edge: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Start, end, node (-1: a delay) and cause (-1: host, to be divided) of each segment."""
    node, edge = node[::-1], edge[::-1]
    source, start = graph.source[edge], graph.start_ns[node]
    leaves = np.where(source >= 0, graph.end_ns[source], graph.origin_ns)
    # A node counts until the next one begins: work may overlap what follows it on its stream.
    until = np.append(np.minimum(graph.end_ns[node][:-1], start[1:]), graph.end_ns[node][-1])
    kind = graph.edge_kind[edge]
    waits_for_device = np.isin(kind, (EdgeKind.STREAM, EdgeKind.WAIT, EdgeKind.SYNC))
    delay_cause = np.select(
        [kind == EdgeKind.LAUNCH, waits_for_device],
        [PATH_CAUSES.index(LAUNCH_LATENCY), PATH_CAUSES.index(DEVICE_GAP)],
        PATH_CAUSES.index(OTHER_WAIT),
    )
    node_cause = graph.kind[node].astype(np.int64) - 1  # GPU kinds lead both lists; host: -1
    starts = np.column_stack((np.minimum(leaves, start), start)).reshape(-1)
    ends = np.column_stack((start, until)).reshape(-1)
    owner = np.column_stack((np.full(len(node), -1), node)).reshape(-1)
    code = np.column_stack((delay_cause, node_cause)).reshape(-1)
    filled = ends > starts
    return starts[filled], ends[filled], owner[filled], code[filled]


def _clip(
    starts: Int64Array, ends: Int64Array, window_starts: Int64Array, window_ends: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """The segments cut at the ends of steps: start, end, step and segment of each part."""
    first = np.searchsorted(window_ends, starts, side="right")
    last = np.searchsorted(window_ends, ends, side="left")
    count = last - first + 1
    row = np.repeat(np.arange(len(starts)), count)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    step = first[row] + nth
    begin = np.maximum(starts[row], window_starts[step])
    end = np.minimum(ends[row], window_ends[step])
    filled = end > begin
    return begin[filled], end[filled], step[filled], row[filled]


def _time_per_cause(
    graph: StepGraph, starts: Int64Array, ends: Int64Array, owner: Int64Array, code: Int64Array
) -> Int64Array:
    """One row per segment, one column per cause."""
    totals = np.zeros((len(starts), len(PATH_CAUSES)), np.int64)
    known = np.nonzero(code >= 0)[0]
    totals[known, code[known]] = (ends - starts)[known]
    offset = len(GPU_CAUSES)
    host = np.nonzero(code < 0)[0]
    lanes = graph.lane[owner[host]]
    for lane in np.unique(lanes):
        mine = host[lanes == lane]
        totals[mine, offset : offset + len(CAUSES)] = graph.host.divide(
            int(lane), starts[mine], ends[mine]
        )
    return totals


def _segment_table(
    graph: StepGraph, starts: Int64Array, ends: Int64Array, owner: Int64Array, cause: Int64Array
) -> pl.DataFrame:
    is_node = owner >= 0
    event = np.where(is_node, graph.event[owner], -1)
    return pl.DataFrame(
        {
            "start_ns": starts,
            "end_ns": ends,
            "cause": pl.Series(np.array(_names(graph))[cause]),
            "event": event,
            "lane_id": np.where(is_node, graph.lane[owner], -1),
        }
    ).with_columns(
        pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in ("event", "lane_id")
    )


def _kernels(trace: Trace, segments: pl.DataFrame) -> pl.DataFrame:
    on_path = segments.drop_nulls("event")
    return (
        trace.events.filter(pl.col("event").is_in(on_path["event"].implode()))
        .select("event", "name_id")
        .collect()
        .join(trace.names.select("name_id", "name").collect(), on="name_id")
        .join(on_path, on="event")
        .group_by("name", "cause")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            (pl.col("end_ns") - pl.col("start_ns")).sum().alias("total_ns"),
        )
        .sort("total_ns", "name", descending=[True, False])
    )
