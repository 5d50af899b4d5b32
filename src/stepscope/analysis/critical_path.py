"""The critical path of the steps: what one would have to shorten for them to end earlier.

Walked backwards on the graph of the steps (`graph.step_graph`), from what ends last: each node
began when its binding predecessor allowed it to. The path is unbroken in time from the beginning of
the first step to the end of the last, so the time per cause adds up to the step, to the nanosecond.

Causes
    compute, communication, copy, fill: GPU work on the path. Host causes (`host.causes`): what a
    thread on the path was doing. launch latency: from a launching call to its work, where nothing
    else held the work up. device gap: from the end of GPU work to the start of what had to wait for
    it. other wait: waits that the graph does not explain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.kinds import EdgeKind, NodeKind
from stepscope.analysis.graph.loops import walk_back
from stepscope.analysis.graph.replay import Replay, is_host_bound
from stepscope.analysis.graph.step_graph import ORIGIN, StepGraph
from stepscope.analysis.host.causes import CAUSES, HostCause, cause_names
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.selection.partition import Part, Partition
from stepscope.analysis.selection.scope import AnsweredScope, EventChoice, Scope
from stepscope.trace.arrays.intervals import Int64Array, Intervals, clip_by_windows
from stepscope.trace.machine.jit import jit
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
    *(cause.word for cause in CAUSES),
    LAUNCH_LATENCY,
    DEVICE_GAP,
    OTHER_WAIT,
)
_FROM_DEVICES = (EdgeKind.STREAM, EdgeKind.WAIT, EdgeKind.SYNC, EdgeKind.QUEUE)
"""Edges that leave work of a device: gaps before what they lead to are the device's."""
_HOST_CAUSES = slice(len(GPU_CAUSES), len(GPU_CAUSES) + len(CAUSES))
_NODES_AT_ONCE = 2**13
"""The times per cause of these nodes of the path stay in the processor's cache."""
_BINDS_NOTHING = -(2**62)
"""Delay of an edge that a change takes away."""


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of consecutive steps.

    Attributes:
        step_ns: Mean step, the same as in every other answer.
        total_ns: From the beginning of the first step to the end of the last; of several devices
            of the one that ends last.
        causes: Time on the path per cause: cause, total_ns, total_share, the largest first.
        partition: The same, in the order of `PATH_CAUSES`; without GPU work dispatch is called
            operators, for they do the work themselves.
        steps: One row per step and cause: step, cause, total_ns. The causes of a step add up to it.
        segments: The path in order of time: start_ns, end_ns, cause, event (the GPU event; null:
            host or a delay), lane_id (null: a delay). A host segment may hold several causes; it
            then bears the one with the most time.
        kernels: GPU work on the path by name: name, cause, count, total_ns, the longest first.
    """

    scope: AnsweredScope
    step_ns: int
    total_ns: int = field(metadata={"label": "steps in all"})
    causes: pl.DataFrame
    partition: Partition = field(metadata={"show": False})
    steps: pl.DataFrame
    segments: pl.DataFrame
    kernels: pl.DataFrame
    notes: tuple[str, ...]


def critical_path(trace: Trace, scope: Scope | None = None) -> CriticalPath:
    """Find the critical path.

    Args:
        scope: Which consecutive steps; devices and the choice of events have no influence, for a
            step depends on all of them.
    """
    asked = scope or Scope()
    found = path_of(build_step_graph(trace, asked.steps), trace, asked)
    steady = steady_steps(trace, Scope(steps=asked.steps))
    return replace(found, notes=(*steady.notes, *found.notes, *what_steps_depend_on(asked)))


def what_steps_depend_on(asked: Scope) -> tuple[str, ...]:
    """The note that devices and the choice of events were passed over, if they were asked for."""
    if asked.devices is None and asked.events is EventChoice.ALL:
        return ()
    return ("a step depends on all devices and all GPU events: the answer is about all of them",)


def path_of(graph: StepGraph, trace: Trace, asked: Scope | None = None) -> CriticalPath:
    """The critical path of a graph that has been built."""
    found = _together(list(_find(graph)))
    names = _names(graph)
    numbers = graph.steps or (None,)
    table = pl.DataFrame(
        {
            "step": pl.Series([n for n in numbers for _ in names], dtype=pl.Int32),
            "cause": list(names) * len(numbers),
            "total_ns": found.of_steps.reshape(-1),
        }
    ).filter(pl.col("total_ns") > 0)
    partition = _partition(graph, found.of_steps)
    parts = partition.parts
    segments = _segment_table(graph, found)
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
            events=int(graph.is_gpu.sum()),
        ),
        step_ns=graph.mean_step_ns,
        total_ns=graph.total_ns,
        causes=causes.sort("total_ns", descending=True, maintain_order=True),
        partition=partition,
        steps=table,
        segments=segments,
        kernels=_kernels(trace, segments),
        notes=graph.notes,
    )


def path_partition(graph: StepGraph) -> Partition:
    """What the steps consist of on the critical path: the partition of `path_of`, without tables.

    The path has as many segments as the graph has nodes; who asks for none keeps none.
    """
    none = np.zeros((len(graph.step_ends_ns), len(PATH_CAUSES)), np.int64)
    return _partition(graph, sum((piece.of_steps for piece in _find(graph)), none))


class Limits(NamedTuple):
    """What the steps of a replay depend on: time on their critical path."""

    compute: int
    communication: int
    copies: int
    input: int
    host: int


def limits_now(path: Partition) -> Limits:
    """What limits the measured steps, from the partition of their critical path."""
    compute = sum(path.of(name) for name in ("compute", "fill", DEVICE_GAP))
    communication, copies = path.of("communication"), path.of("copy")
    of_input = path.of(HostCause.INPUT.word)
    rest = path.total_ns - compute - communication - copies - of_input
    return Limits(compute, communication, copies, of_input, rest)


def limits_of(changes: Changes, again: Replay) -> Limits:
    """What limits the steps once some changes are made: their critical path, replayed.

    Waiting for input counts as such, everything else of the host as host, with the latency of
    launches that nothing else held up. Gaps between work of the device count as compute. Where the
    host is slower than the devices in the steady state, it is the main thread's time instead.
    """
    if is_host_bound(changes, again):
        rows = changes.graph.host_rows
        spent = changes.dur_ns[rows]
        of_input = _input_left(changes, rows, spent)
        return Limits(0, 0, 0, of_input, int(spent.sum()) - of_input)
    graph = changes.graph
    start, end = again.start_ns, again.end_ns
    is_within = changes.is_kept & (graph.source >= ORIGIN)
    delays = np.where(is_within, again.delay_ns, _BINDS_NOTHING)
    rows = graph.step_rows.rows
    nodes, into = _walk(graph, start, end, delays, int(rows[np.argmax(end[rows])]))
    last = end[nodes]
    until = np.append(np.minimum(last[:-1], start[nodes[1:]]), last[-1:])
    begin = np.maximum(start[nodes], graph.begin_ns)
    spent = np.maximum(until - begin, 0)
    kind = graph.kind[nodes]
    source = np.maximum(graph.source[into], ORIGIN)
    came = np.where(source >= 0, end[source], graph.origin_ns)
    gap = np.maximum(begin - np.maximum(came, graph.begin_ns), 0)
    edge_kind = graph.edge_kind[into]
    of_device = np.isin(edge_kind, _FROM_DEVICES)
    of_input = _input_left(changes, nodes, spent)
    of_arrivals = edge_kind == EdgeKind.ARRIVAL
    of_host = ~of_device & ~of_arrivals
    total = {one: int(spent[kind == one].sum()) for one in NodeKind}
    return Limits(
        compute=total[NodeKind.COMPUTE] + total[NodeKind.MEMSET] + int(gap[of_device].sum()),
        communication=total[NodeKind.COMMUNICATION],
        copies=total[NodeKind.MEMCPY],
        input=of_input + int(gap[of_arrivals].sum()),
        host=total[NodeKind.HOST] - of_input + int(gap[of_host].sum()),
    )


def _input_left(changes: Changes, nodes: Int64Array, spent: Int64Array) -> int:
    """How long pieces of threads still wait for input.

    Args:
        nodes: Nodes in order of time.
        spent: How much of each counts.
    """
    graph = changes.graph
    mine = np.flatnonzero(graph.kind[nodes] == NodeKind.HOST)
    rows = nodes[mine]
    columns = graph.lane[rows], graph.start_ns[rows], graph.end_ns[rows]
    waited = graph.host.of_cause(HostCause.INPUT, *columns)
    # What a change takes from a piece, it takes from its waiting first.
    taken = graph.dur_ns[rows] - changes.dur_ns[rows]
    return int(np.clip(waited - taken, 0, spent[mine]).sum())


class _Found(NamedTuple):
    """The path, or a piece of it, in order, and what it consists of.

    Attributes:
        owner: Node of each segment; -1: a delay.
        cause: The number of their main causes.
        of_steps: One row per step, one column for each of `PATH_CAUSES`: time.
    """

    starts: Int64Array
    ends: Int64Array
    owner: Int64Array
    cause: Int64Array
    of_steps: Int64Array


def _find(graph: StepGraph) -> Iterator[_Found]:
    """The path in pieces, for all of it would be the largest table of an analysis."""
    times = graph.start_ns, graph.end_ns, graph.delay_ns
    node, edge = _walk(graph, *times, _last_node(graph))
    for low in range(0, len(node), _NODES_AT_ONCE):
        yield _find_piece(graph, *_segments(graph, node, edge, low))


def _find_piece(
    graph: StepGraph, starts: Int64Array, ends: Int64Array, owner: Int64Array, code: Int64Array
) -> _Found:
    # The host's part of the path may begin before the steps do.
    within = ends > graph.begin_ns
    starts, ends, owner, code = (column[within] for column in (starts, ends, owner, code))
    starts = np.maximum(starts, graph.begin_ns)
    windows = graph.step_starts_ns, graph.step_ends_ns
    step, row, first, last = clip_by_windows(Intervals(starts, ends), *windows)
    whole = np.zeros((len(graph.step_ends_ns), len(PATH_CAUSES)), np.int64)
    known = np.flatnonzero(code[row] >= 0)
    np.add.at(whole, (step[known], code[row[known]]), last[known] - first[known])
    main_cause = np.maximum(code, 0)
    mine = np.flatnonzero(code[row] < 0)
    if len(mine):  # parts in which the path is a thread's, by what that did
        of_step, segment = step[mine], row[mine]
        host = graph.host.divide_each(graph.lane[owner[segment]], first[mine], last[mine])
        head = _starts_of_runs(of_step)
        sums = np.add.reduceat(host, head, axis=1)
        np.add.at(whole[:, _HOST_CAUSES], of_step[head], sums.T)
        # Steps cut segments: what counts is the time in all parts of one together.
        head = _starts_of_runs(segment)
        of_segment = host[:, head]
        # There are few further parts: one for each step.
        further = np.flatnonzero(segment[1:] == segment[:-1]) + 1
        of_which = np.searchsorted(head, further, side="right") - 1
        np.add.at(of_segment.T, of_which, host[:, further].T)
        main_cause[segment[head]] = _HOST_CAUSES.start + of_segment.argmax(axis=0)
    return _Found(starts, ends, owner, main_cause, whole)


def _together(pieces: list[_Found]) -> _Found:
    """The whole path; there is at least one piece, since something ends last."""
    *columns, of_steps = zip(*pieces, strict=True)
    starts, ends, owner, cause = (np.concatenate(column) for column in columns)
    return _Found(starts, ends, owner, cause, np.sum(of_steps, axis=0))


def _partition(graph: StepGraph, of_steps: Int64Array) -> Partition:
    sums = of_steps.sum(axis=0).tolist()
    parts = tuple(Part(n, t) for n, t in zip(_names(graph), sums, strict=True) if t)
    count = max(1, len(graph.steps))
    return Partition(parts, graph.total_ns, count, "critical path of the steps")


def _names(graph: StepGraph) -> tuple[str, ...]:
    first = len(GPU_CAUSES)
    host = cause_names(has_gpu=bool(graph.is_gpu.any()), has_stacks=graph.host.has_stacks)
    return (*PATH_CAUSES[:first], *host, *PATH_CAUSES[first + len(host) :])


def _walk(
    graph: StepGraph, start_ns: Int64Array, end_ns: Int64Array, delay_ns: Int64Array, last: int
) -> tuple[Int64Array, Int64Array]:
    """Nodes of the path to the last one, in order, and the binding edge into each."""
    columns = (graph.first_edge, graph.source, delay_ns, start_ns, end_ns)
    path, edge = np.empty(len(graph), np.int64), np.empty(len(graph), np.int64)
    count = jit(walk_back)(*columns, graph.origin_ns, last, path, edge)
    return path[:count][::-1], edge[:count][::-1]


def _last_node(graph: StepGraph) -> int:
    """What ends when the last step does; of several the last in the graph's order."""
    found = np.flatnonzero(graph.end_ns == graph.step_ends_ns[-1])
    if not len(found):
        # The steps have no length: by the device's clock, all their work ended before they began.
        rows = graph.step_rows.rows
        found = rows[graph.end_ns[rows] == graph.end_ns[rows].max()]
    return int(found[-1])


def _segments(
    graph: StepGraph, nodes: Int64Array, edges: Int64Array, low: int
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Start, end, node (-1: a delay) and cause (-1: host, to be divided) of each segment.

    Args:
        nodes: The nodes of the path, in order.
        edges: The binding edge into each.
        low: The first of `_NODES_AT_ONCE` nodes whose segments these are.
    """
    node, edge = nodes[low : low + _NODES_AT_ONCE], edges[low : low + _NODES_AT_ONCE]
    source, start = np.maximum(graph.source[edge], ORIGIN), graph.start_ns[node]
    leaves = np.where(source >= 0, graph.end_ns[source], graph.origin_ns)
    # A node counts until the next one begins: work may overlap what follows it on its stream.
    until = graph.end_ns[node]
    following = graph.start_ns[nodes[low + 1 : low + 1 + len(node)]]
    until[: len(following)] = np.minimum(until[: len(following)], following)
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


def _starts_of_runs(values: Int64Array) -> Int64Array:
    """Where a value differs from the one before."""
    return np.nonzero(np.append(True, values[1:] != values[:-1])[: len(values)])[0]


def _segment_table(graph: StepGraph, found: _Found) -> pl.DataFrame:
    is_node = found.owner >= 0
    return pl.DataFrame(
        {
            "start_ns": found.starts,
            "end_ns": found.ends,
            "cause": pl.Series(_names(graph), dtype=pl.String)[found.cause],
            "event": np.where(is_node, graph.event[found.owner], np.int64(-1)),
            "lane_id": np.where(is_node, graph.lane[found.owner], np.int64(-1)),
        }
    ).with_columns(
        pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in ("event", "lane_id")
    )


def _kernels(trace: Trace, segments: pl.DataFrame) -> pl.DataFrame:
    on_path = segments.drop_nulls("event")
    name_id = trace.columns("name_id")["name_id"]
    return (
        on_path.select(
            "cause",
            name_id=name_id[on_path["event"]],
            dur_ns=pl.col("end_ns") - pl.col("start_ns"),
        )
        .group_by("name_id", "cause")
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("dur_ns").sum().alias("total_ns"))
        .join(trace.name_rows["name_id", "name"], on="name_id")
        .group_by("name", "cause")
        .agg(pl.col("count", "total_ns").sum())
        .sort("total_ns", "name", "cause", descending=[True, False, False])
    )
