"""What a step would take if a cause were gone: the graph of the step, replayed with other weights.

A change shrinks durations (of GPU work, or of moments of a thread), or takes away dependencies
(a blocking call no longer waits). Nothing is moved to another stream or thread. Durations and
delays only ever shrink here, so no replay is slower than the measured steps, and the replay
without a change gives the measured times to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepscope.analysis.graph.edges import EdgeKind
from stepscope.analysis.graph.loops import COMPILED_PAYS_FROM, compiled_loop, sweep
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.host.causes import HostCause
from stepscope.errors import UsageError
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals


@dataclass(frozen=True)
class Changes:
    """Durations and edges of a graph after a change. Build them with `unchanged` and the methods.

    Attributes:
        graph: The graph.
        dur_ns: Duration of each node.
        delay_ns: Delay of each edge.
        is_kept: Whether each edge still holds.
    """

    graph: StepGraph
    dur_ns: Int64Array
    delay_ns: Int64Array
    is_kept: BoolArray

    def scale_work(self, nodes: BoolArray, factor: float) -> Changes:
        """GPU work takes `factor` of its time, from 0 to 1."""
        _check(factor)
        which = nodes & self.graph.is_gpu
        scaled = np.where(which, _scaled(self.dur_ns, factor), self.dur_ns)
        return Changes(self.graph, scaled, self.delay_ns, self.is_kept)

    def shorten_work(self, dur_ns: Int64Array) -> Changes:
        """Each piece of GPU work takes no longer than given, one value per node."""
        shorter = np.minimum(self.dur_ns, np.maximum(dur_ns, 0))
        dur = np.where(self.graph.is_gpu, shorter, self.dur_ns)
        return Changes(self.graph, dur, self.delay_ns, self.is_kept)

    def scale_host(
        self, moments: Intervals, factor: float = 0.0, lanes: tuple[int, ...] | None = None
    ) -> Changes:
        """Host time within some moments takes `factor` of what it takes now.

        Args:
            moments: Which; parts that no thread works in have no effect.
            factor: From 0 to 1.
            lanes: Threads; default: all of the graph.
        """
        _check(factor)
        graph = self.graph
        which = ~graph.is_gpu
        if lanes is not None:
            which &= np.isin(graph.lane, lanes)
        rows = np.nonzero(which)[0]
        inside = intervals.covered(moments, graph.start_ns[rows], graph.end_ns[rows])
        less = inside - _scaled(inside, factor)
        return self.shorten_pieces(rows, less)

    def shorten_pieces(self, rows: Int64Array, less_ns: Int64Array) -> Changes:
        """Some pieces of threads take so much less time, one value per row, never negative."""
        dur = self.dur_ns.copy()
        dur[rows] = np.maximum(dur[rows] - less_ns, 0)
        return Changes(self.graph, dur, self.delay_ns, self.is_kept)

    def drop_edges(self, edges: BoolArray) -> Changes:
        """Some dependencies are gone. The order of a thread and of a stream always stays."""
        order = np.isin(self.graph.edge_kind, (EdgeKind.THREAD, EdgeKind.STREAM))
        return Changes(self.graph, self.dur_ns, self.delay_ns, self.is_kept & ~(edges & ~order))

    def and_also(self, other: Changes) -> Changes:
        """Both changes at once: of each duration and delay the shorter one."""
        return Changes(
            self.graph,
            np.minimum(self.dur_ns, other.dur_ns),
            np.minimum(self.delay_ns, other.delay_ns),
            self.is_kept & other.is_kept,
        )

    def drop_waits_of_calls(self, calls: npt.ArrayLike) -> Changes:
        """Some blocking calls return at once, whatever the device is doing."""
        graph = self.graph
        return self.drop_edges(
            (graph.edge_kind == EdgeKind.SYNC) & np.isin(graph.call, np.asarray(calls))
        )


@dataclass(frozen=True)
class Replay:
    """A graph's steps with changed weights.

    Attributes:
        step_ends_ns: End of each step, as `StepGraph.step_ends_ns`.
        total_ns: From the measured start of the first step to the end of the last.
        mean_step_ns: Mean duration of the steps: the measured mean less the saving.
        saving_ns: What a mean step is shorter by than the measured mean; never negative, and never
            more than the step. With GPU work a step takes at least as long as the host alone needs
            for it: at the start of a window the host may be ahead by work that it did before, and
            the device would soon catch up.
        is_host_bound: Whether the saving ends where the host's own time begins to count.
        start_ns: Start of each node.
        end_ns: End of each node.
    """

    step_ends_ns: Int64Array
    total_ns: int
    mean_step_ns: int
    saving_ns: int
    is_host_bound: bool
    start_ns: Int64Array
    end_ns: Int64Array


def unchanged(graph: StepGraph) -> Changes:
    """The graph as it was measured."""
    return Changes(graph, graph.dur_ns, graph.delay_ns, np.ones(len(graph.source), np.bool_))


def replay(changes: Changes) -> Replay:
    """Let the steps run again."""
    graph = changes.graph
    measured = graph.dur_ns
    source = graph.source
    # Work that overlaps its predecessor on a stream keeps overlapping the same share of it.
    delay = changes.delay_ns
    early = (delay < 0) & (source >= 0)
    if early.any():
        old, new = measured[source[early]], changes.dur_ns[source[early]]
        delay = delay.copy()
        delay[early] = -((-delay[early]) * new // np.maximum(old, 1))
    start = _starts(graph, delay, changes)
    end = start + changes.dur_ns
    ends = graph.step_rows.ends(end, len(graph.steps), graph.begin_ns)
    total = int(ends[-1]) - graph.begin_ns
    least = _least_total(changes, delay, total)
    saving = round((graph.total_ns - least) / max(1, len(graph.steps)))
    saving = min(max(0, saving), graph.mean_step_ns)
    mean = graph.mean_step_ns - saving
    return Replay(ends, total, mean, saving, least > total, start, end)


def _least_total(changes: Changes, delay: Int64Array, total_ns: int) -> int:
    """How long the steps take in the long run: on the devices, or on the host if that is longer.

    A window may begin while the devices still have earlier work, and the host is ahead by what it
    launched meanwhile. In the long run it is not: a step takes at least what the host needs for it
    if it never waits for a device. That may be more than the step that was measured, which then
    stays as it is.
    """
    graph = changes.graph
    if not graph.steps or total_ns >= min(graph.total_ns, graph.host_time_ns):
        return total_ns
    alone_ns = host_alone_ns(changes, delay)
    return max(total_ns, min(alone_ns, graph.total_ns))


def host_alone_ns(changes: Changes, delay: Int64Array | None = None) -> int:
    """What the main thread needs for the steps if no device ever makes it wait.

    Args:
        changes: What is changed.
        delay: Delay of each edge; default: those of the changes.
    """
    graph = changes.graph
    alone = replace(
        changes,
        dur_ns=np.where(graph.is_gpu, 0, changes.dur_ns - _waits_for_backlog(changes)),
        is_kept=changes.is_kept & (graph.edge_kind != EdgeKind.SYNC),
    )
    start = _starts(graph, changes.delay_ns if delay is None else delay, alone)
    rows = graph.host_rows
    if not len(rows):
        return 0
    return int((start + alone.dur_ns)[rows].max() - start[rows].min())


def _waits_for_backlog(changes: Changes) -> Int64Array:
    """For each piece of the main thread, how long it waits for work from before the steps."""
    graph = changes.graph
    waits = np.zeros(len(graph), np.int64)
    rows = graph.host_rows[graph.start_ns[graph.host_rows] < graph.begin_ns]
    if len(rows):
        until = np.minimum(graph.end_ns[rows], graph.begin_ns)
        causes = graph.host.divide(graph.main_lane, graph.start_ns[rows], until)
        waits[rows] = np.minimum(causes[HostCause.SYNCHRONISATION], changes.dur_ns[rows])
    return waits


def _starts(graph: StepGraph, delay: Int64Array, changes: Changes) -> Int64Array:
    start, end = np.empty(len(graph), np.int64), np.empty(len(graph), np.int64)
    columns = (graph.first_edge, graph.source, delay, changes.is_kept, changes.dur_ns)
    if len(graph) >= COMPILED_PAYS_FROM:
        compiled_loop(sweep)(*columns, graph.origin_ns, start, end)
        return start
    # Lists of Python integers are several times faster to walk than arrays, without a compiler.
    first_edge, source, delays, is_kept, dur = (column.tolist() for column in columns)
    starts, ends = start.tolist(), end.tolist()
    sweep(first_edge, source, delays, is_kept, dur, graph.origin_ns, starts, ends)
    return np.array(starts, np.int64)


def _scaled(durations: Int64Array, factor: float) -> Int64Array:
    """Durations times a factor, rounded down, so that 1 leaves them as they are."""
    if factor == 1.0:
        return durations
    scaled: Int64Array = np.floor(durations * factor).astype(np.int64)
    return scaled


def _check(factor: float) -> None:
    if not 0.0 <= factor <= 1.0:
        raise UsageError(f"a factor of {factor} is not between 0 and 1: causes only shrink")
