"""The dependency graph of the steps of a trace, which critical path and what-if replay walk on.

Nodes
    GPU work: kernels, copies and fills, each with its stream. Pieces of host threads: the main
    thread (which carries the steps) and every thread that launches GPU work, cut where something
    depends on them or they depend on something (`graph_host.py`).

Edges, each with a delay, from the end of one node to the start of another
    thread: the order of a thread's pieces.
    launch: from the launching call to its GPU work. It leaves the host where the call ends, or
        where the work begins if that is earlier (calls may outlast the start of their work).
    stream: the order of a stream's work. Its delay is negative where work overlaps on a stream.
    sync: from GPU work to the host that waited for it: synchronising calls, copies that return
        after the copy is done, and freeing of memory. What a call waited for is what the recorder
        says, else the work launched before it that ended last within it.
    wait: from GPU work of one stream to work of another. Where the recorder says which stream
        waited for which event (`sync_records.py`), from the last work before that event to the
        first after the wait. Without such records: where a thread made a stream wait
        (`cudaStreamWaitEvent`) between two launches, the next work waits for what the other
        streams had been given last before, if that had ended in time; and where nothing else
        explains why work began late, it waits for the work on another stream that ended just
        before.
    handover: between the main thread and the thread that it hands work to, and back.
    origin: the beginning of the first step, for what depends on nothing else; and for the first
        work of a stream that was still busy with work of earlier steps, the end of that.

Delays
    A node starts at the latest of its predecessors' ends plus the delays. Of the edges into a node
    the binding one carries whatever is left until the measured start: launch latency, gaps of the
    device, and what is not understood. The others carry what is typical in the trace for their
    kind, as far as it fits. So a replay of the unchanged graph gives every measured time exactly.

The end of the loop
    Where the last step of a file goes on, after its last operator and call, for longer than any
    other step does, the difference is taken for what comes after the loop, and left out.

What is not modelled: kernels slow each other down when they overlap, and clocks vary; removing one
may make another faster. A collective's duration includes its waiting for other ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.graph_edges import EdgeKind, Edges, find_edges
from stepscope.analysis.graph_host import (
    Pieces,
    active_time,
    add_moments,
    cut_into_pieces,
    find_handovers,
)
from stepscope.analysis.graph_work import GpuWork, read_calls, read_work
from stepscope.analysis.host_causes import HostEvents, host_events, on_lanes
from stepscope.analysis.sync_records import read_sync_records, recorded_waits
from stepscope.errors import UsageError
from stepscope.trace.intervals import Int64Array
from stepscope.trace.model import Trace
from stepscope.trace.ordering import by_group_and_time
from stepscope.trace.schema import Category

ORIGIN = -1
_LEAST_STEPS = 3
_NOTABLE_TAIL_NS = 1_000_000
NO_THREAD = -1
"""The main lane of a file that holds nothing of the host."""


class NodeKind(IntEnum):
    """What a node is."""

    HOST = 0
    COMPUTE = 1
    COMMUNICATION = 2
    MEMCPY = 3
    MEMSET = 4


@dataclass(frozen=True)
class StepGraph:
    """The graph of consecutive steps; nodes in an order in which every edge points forward.

    Attributes:
        steps: Numbers of the steps; empty where the trace has none: the graph spans it whole.
        origin_ns: Start of the first step.
        step_ends_ns: End of each step as the graph counts it: when all GPU work launched up to it
            has ended (a running maximum); of the last step the host's end, if that is later. On a
            trace without GPU work, the ends of the host steps. They divide the time from the
            origin on; without steps there is one, the end of everything.
        main_lane: The thread that carries the steps.
        start_ns: Measured start of each node.
        end_ns: Measured end of each node.
        kind: `NodeKind` of each node.
        lane: Thread or stream of each node.
        event: Number of the GPU event of each node; -1: a piece of a thread.
        step: Index in `steps` of each node.
        step_rows: The nodes that tell when each step ends.
        first_edge: The edges into node i stand from `first_edge[i]` to `first_edge[i + 1]`.
        source: Node that each edge leaves, `ORIGIN` for the origin.
        delay_ns: Delay of each edge.
        edge_kind: `EdgeKind` of each edge.
        call: Number of the call that made each edge: launch, sync; -1: none.
        host: What the threads were doing, by cause.
        notes: What limits the graph, in words.
    """

    steps: tuple[int, ...]
    origin_ns: int
    step_ends_ns: Int64Array
    main_lane: int
    start_ns: Int64Array
    end_ns: Int64Array
    kind: npt.NDArray[np.int8]
    lane: Int64Array
    event: Int64Array
    step: Int64Array
    step_rows: StepRows
    first_edge: Int64Array
    source: Int64Array
    delay_ns: Int64Array
    edge_kind: npt.NDArray[np.int8]
    call: Int64Array
    host: HostEvents
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def dur_ns(self) -> Int64Array:
        """Measured duration of each node."""
        return self.end_ns - self.start_ns

    @cached_property
    def is_gpu(self) -> npt.NDArray[np.bool_]:
        """Whether each node is GPU work."""
        is_gpu: npt.NDArray[np.bool_] = self.kind != NodeKind.HOST
        return is_gpu

    @cached_property
    def target(self) -> Int64Array:
        """Node that each edge leads to."""
        rows = np.arange(len(self), dtype=np.int64)
        target: Int64Array = np.repeat(rows, np.diff(self.first_edge))
        return target

    @property
    def total_ns(self) -> int:
        """From the origin to the end of the last step."""
        return int(self.step_ends_ns[-1]) - self.origin_ns

    @property
    def mean_step_ns(self) -> int:
        """Mean duration of the steps, to the nearest nanosecond."""
        return round(self.total_ns / max(1, len(self.steps)))

    @property
    def step_starts_ns(self) -> Int64Array:
        """Start of each step: the end of the one before."""
        return np.concatenate(([self.origin_ns], self.step_ends_ns[:-1]))


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
    chosen, window = _choose_steps(trace, steps)
    work = read_work(trace, chosen["step"] if len(chosen) else None)
    main_lane = _main_lane(trace, chosen, work)
    launching = work.launch_lanes
    lanes = tuple(sorted(lane for lane in {main_lane, *launching} if lane != NO_THREAD))
    with ThreadPoolExecutor(1) as beside:
        # Both need every event of the threads, and neither the other.
        host = beside.submit(_host_with_claims, trace, lanes)
        graph = _graph_of(trace, chosen, window, main_lane, lanes, work, host.result)
    if not len(graph):
        raise UsageError(f"{trace.path}: holds nothing that took time in the steps asked for")
    if float(graph.dur_ns.sum(dtype=np.float64)) > _LONGEST_NS:
        raise UsageError(f"{trace.path}: durations add up to centuries: the file is damaged")
    return graph


def _host_with_claims(trace: Trace, lanes: tuple[int, ...]) -> HostEvents:
    """What the threads were doing; who asks for a graph asks for the moments of each cause too."""
    host = host_events(trace, lanes)
    for lane in lanes:
        host.claims(lane)
    return host


def _graph_of(
    trace: Trace,
    chosen: pl.DataFrame,
    window: tuple[int, int],
    main_lane: int,
    lanes: tuple[int, ...],
    work: GpuWork,
    host: Callable[[], HostEvents],
) -> StepGraph:
    """Cut the threads into pieces, find the edges, and put the graph together."""
    calls = read_calls(trace, lanes, window)
    activity = _activity(trace, lanes)
    tail_ns = 0
    if not len(chosen):
        window = _whole_window(activity, work, window)
    else:
        tail_ns = _tail(trace, chosen, activity.filter(pl.col("lane_id") == main_lane))
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
    graph = _assemble(chosen, window, main_lane, pieces, work, edges, host)
    if tail_ns:
        note = (
            f"the last step goes on for {tail_ns / 1e6:.1f} ms longer than any other after its "
            "last operator and call: taken for the end of the loop, and left out"
        )
        graph = replace(graph, notes=(*graph.notes, note))
    return graph


def _choose_steps(
    trace: Trace, steps: tuple[int, ...] | None
) -> tuple[pl.DataFrame, tuple[int, int]]:
    """The host steps in question, and the time that they span."""
    # A step in which nothing ran is left out, unless it is asked for.
    host = trace.steps
    if steps is None:
        chosen = _longest_run(host.filter(~pl.col("is_empty")))
    else:
        missing = sorted(set(steps) - set(host["step"].to_list()))
        if missing:
            raise UsageError(
                f"{trace.path}: no step {missing[0]}; it holds"
                f" {', '.join(map(str, host['step'].to_list())) or 'none'}"
            )
        chosen = host.filter(pl.col("step").is_in(steps))
        if (chosen["start_ns"][1:] != chosen["end_ns"][:-1]).any():
            raise UsageError(f"{trace.path}: a replay needs steps that follow one another")
    if len(chosen):
        return chosen, (int(chosen["start_ns"][0]), int(chosen["end_ns"][-1]))
    extent = trace.events.select(
        first=pl.col("start_ns").min(), last=(pl.col("start_ns") + pl.col("dur_ns")).max()
    ).collect()
    if extent["first"][0] is None:
        raise UsageError(f"{trace.path}: holds no events")
    return chosen, (int(extent["first"][0]), int(extent["last"][0]))


def _longest_run(host: pl.DataFrame) -> pl.DataFrame:
    """The most steps that follow one another without a break; the first such run."""
    if len(host) < 2:
        return host
    is_break = host["start_ns"][1:].to_numpy() != host["end_ns"][:-1].to_numpy()
    edges = np.concatenate(([0], np.flatnonzero(is_break) + 1, [len(host)]))
    longest = int(np.argmax(np.diff(edges)))
    return host[int(edges[longest]) : int(edges[longest + 1])]


def _tail(trace: Trace, chosen: pl.DataFrame, activity: pl.DataFrame) -> int:
    """What the last step of the file takes at its end beyond what any other does.

    Where the loop ends within the window, the last annotation also covers what comes after the
    loop: workers that are shut down, the profiler that is stopped.
    """
    if len(chosen) < _LEAST_STEPS or chosen["step"][-1] != trace.steps["step"][-1]:
        return 0
    starts, ends = chosen["start_ns"].to_numpy(), chosen["end_ns"].to_numpy()
    begun = activity["start_ns"].to_numpy()
    index = np.searchsorted(starts, begun, side="right") - 1
    mine = (index >= 0) & (begun < ends[np.maximum(index, 0)])
    last = starts.copy()
    np.maximum.at(last, index[mine], activity["end_ns"].to_numpy()[mine])
    quiet = np.maximum(ends - last, 0)
    beyond = int(quiet[-1] - quiet[:-1].max())
    return beyond if beyond > _NOTABLE_TAIL_NS else 0


def _main_lane(trace: Trace, chosen: pl.DataFrame, work: GpuWork) -> int:
    if len(chosen):
        return int(chosen["lane_id"][0])
    if len(work.launch_lanes):
        lanes, counts = np.unique(work.call_lane[work.call >= 0], return_counts=True)
        return int(lanes[np.argmax(counts)])
    busiest = (
        trace.events.filter(
            pl.col("category").is_in([Category.CPU_OP.value, Category.RUNTIME.value])
        )
        .group_by("lane_id")
        .len()
        .sort("len", "lane_id", descending=[True, False])
        .collect()
    )
    if not len(busiest):
        if len(work):
            return NO_THREAD
        raise UsageError(f"{trace.path}: holds no operators and no calls of a device's runtime")
    return int(busiest["lane_id"][0])


def _activity(trace: Trace, lanes: tuple[int, ...]) -> pl.DataFrame:
    """Operators and calls of the threads, with their ends; step annotations apart."""
    categories = [Category.CPU_OP.value, Category.RUNTIME.value, Category.DRIVER.value]
    names = trace.names.select(
        pl.col("category").is_in(categories)
        & (pl.col("group") != "profiler_step").fill_null(value=True)
    ).collect()
    events = trace.events.select("name_id", "lane_id", "start_ns", "dur_ns").collect()
    is_named = names.to_series().to_numpy()[events["name_id"].to_numpy()]
    rows: pl.DataFrame = events.filter(
        pl.Series(is_named & on_lanes(trace, events["lane_id"], lanes))
    )
    return rows.select(
        pl.col("lane_id").cast(pl.Int64),
        "start_ns",
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
    )


def _whole_window(
    activity: pl.DataFrame, work: GpuWork, window: tuple[int, int]
) -> tuple[int, int]:
    """Without steps: from the first to the last operator, call or GPU work."""
    starts = np.concatenate((activity["start_ns"].to_numpy(), work.start_ns))
    ends = np.concatenate((activity["end_ns"].to_numpy(), work.end_ns))
    return (int(starts.min()), int(ends.max())) if len(starts) else window


def _assemble(
    chosen: pl.DataFrame,
    window: tuple[int, int],
    main_lane: int,
    pieces: Pieces,
    work: GpuWork,
    edges: Edges,
    host: Callable[[], HostEvents],
) -> StepGraph:
    """Put nodes into order, edges by target, and settle the delays."""
    count, number = len(work), len(work) + len(pieces)
    start = np.concatenate((work.start_ns, pieces.start_ns))
    end = np.concatenate((work.end_ns, pieces.end_ns))
    issued = np.concatenate((work.issue_ns, pieces.start_ns))
    order = by_group_and_time(None, start, end, issued)
    place = np.empty(number + 1, np.int64)
    place[order] = np.arange(number)
    place[ORIGIN] = ORIGIN  # -1: the last place, which is no node's
    source = place[edges.source]
    target = place[edges.target]
    kind, call, floor = edges.kind, edges.call, edges.floor_ns
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
    call = np.concatenate((call, np.full(len(loose), -1, np.int64)))
    floor = np.concatenate((floor, np.zeros(len(loose), np.int64)))
    by_target = np.argsort(target, kind="stable")
    source, target = source[by_target], target[by_target]
    kind, call, floor = kind[by_target], call[by_target], floor[by_target]
    first_edge = np.zeros(number + 1, np.int64)
    np.cumsum(np.bincount(target, minlength=number), out=first_edge[1:])

    start, end = start[order], end[order]
    leaves = np.append(end, window[0])[source] + floor  # only the origin's edges have a floor
    delay = settle_delays(start, target, leaves, kind, first_edge) + floor
    node_kind = np.concatenate((work.kind, np.zeros(len(pieces), np.int8)))[order]
    bounds = chosen["start_ns"].to_numpy()
    host_step = np.maximum(np.searchsorted(bounds, pieces.start_ns, side="right") - 1, 0)
    step = np.concatenate((work.step, host_step))[order]
    notes = []
    if work.unlinked:
        notes.append(
            f"{work.unlinked} of {count} GPU events have no launch in the trace: the replay ties "
            "those that began after a gap to what the main thread did just before"
        )
    if work.skewed:
        notes.append(
            f"{work.skewed} GPU events began before their launch by more than the clocks' skew: "
            "their launches are ignored"
        )
    lane = np.concatenate((work.lane, pieces.lane))[order]
    step_rows = rows_of_steps(node_kind, lane == main_lane, step)
    return StepGraph(
        steps=tuple(chosen["step"].to_list()),
        origin_ns=window[0],
        step_ends_ns=step_rows.ends(end, len(chosen), window[0]),
        main_lane=main_lane,
        start_ns=start,
        end_ns=end,
        kind=node_kind,
        lane=lane,
        event=np.concatenate((work.event, np.full(len(pieces), -1, np.int64)))[order],
        step=step,
        step_rows=step_rows,
        first_edge=first_edge,
        source=source,
        delay_ns=delay,
        edge_kind=kind,
        call=call,
        host=host(),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class StepRows:
    """The nodes that tell when steps end: GPU work; without any, pieces of the main thread.

    Attributes:
        rows: Nodes by step.
        first: Where the nodes of each step that has any begin.
        step: Index of that step.
        host: Pieces of threads, one of which may end the last step.
    """

    rows: Int64Array
    first: Int64Array
    step: Int64Array
    host: Int64Array

    def ends(self, end_ns: Int64Array, steps: int, origin_ns: int) -> Int64Array:
        """End of each step as `StepGraph.step_ends_ns` defines it, from the ends of the nodes."""
        latest = np.full(max(1, steps), origin_ns, np.int64)
        if len(self.rows):
            last = np.maximum.reduceat(end_ns[self.rows], self.first)
            latest[self.step] = np.maximum(last, origin_ns)
        ends: Int64Array = np.maximum.accumulate(latest)
        if len(self.host):
            ends[-1] = max(int(ends[-1]), int(end_ns[self.host].max()))
        return ends


def rows_of_steps(
    kind: npt.NDArray[np.int8], is_main: npt.NDArray[np.bool_], step: Int64Array
) -> StepRows:
    """Which nodes tell when each step ends."""
    is_gpu = kind != NodeKind.HOST
    rows = np.nonzero(is_gpu if is_gpu.any() else is_main)[0]
    rows = rows[np.argsort(step[rows], kind="stable")]
    of_row = step[rows]
    first = np.nonzero(np.append(True, of_row[1:] != of_row[:-1])[: len(rows)])[0]
    return StepRows(rows, first, of_row[first], np.nonzero(~is_gpu)[0])


_FAR_NS = 50_000  # longer delays have a reason that the graph does not know
_CLEAR_NS = 20_000


def settle_delays(
    start: Int64Array,
    target: Int64Array,
    leaves: Int64Array,
    kind: npt.NDArray[np.int8],
    first_edge: Int64Array,
) -> Int64Array:
    """The delay of each edge, so that every node starts when it was measured to.

    Args:
        start: Measured start of each node.
        target: Node that each edge leads to, sorted.
        leaves: Measured end of the node that each edge leaves.
        kind: `EdgeKind` of each edge.
        first_edge: Where the edges of each node begin.
    """
    # Edges stand by their targets: to repeat is quicker than to gather.
    edges = np.diff(first_edge)
    room = np.repeat(start, edges) - leaves
    if not len(room):
        return room
    typical = _typical_delays(room, leaves, target, kind, first_edge)
    fits = np.minimum(typical, room)
    expected = leaves + typical
    best = np.maximum.reduceat(expected, first_edge[:-1])
    # Of equals the first edge binds; the others may keep what fits.
    candidates = np.nonzero(expected == np.repeat(best, edges))[0]
    first = np.concatenate(([True], np.diff(target[candidates]) != 0))
    binding = candidates[first]
    delay: Int64Array = fits.astype(np.int64)
    delay[binding] = room[binding]
    return delay


def _typical_delays(
    room: Int64Array,
    leaves: Int64Array,
    target: Int64Array,
    kind: npt.NDArray[np.int8],
    first_edge: Int64Array,
) -> Int64Array:
    """For each edge the usual delay of its kind in this trace.

    Taken where it is clear which edge a node waited for: no other leaves within 20 µs before. Where
    it never is, a low quantile of the candidates stands in, for theirs are too long rather than
    too short.
    """
    typical = np.zeros(len(room), np.int64)
    latest = np.repeat(np.maximum.reduceat(leaves, first_edge[:-1]), np.diff(first_edge))
    is_rival = leaves > latest - _CLEAR_NS
    rivals = np.add.reduceat(is_rival, first_edge[:-1], dtype=np.int64)
    is_near = (leaves == latest) & (room >= 0) & (room < _FAR_NS)
    for which in (EdgeKind.LAUNCH, EdgeKind.STREAM, EdgeKind.WAIT):
        mine = kind == which
        candidates = np.nonzero(mine & is_near)[0]
        clear = candidates[rivals[target[candidates]] == 1]
        if len(clear):
            typical[mine] = int(np.median(room[clear]))
        elif len(candidates):
            typical[mine] = int(np.quantile(room[candidates], 0.1))
    return typical
