"""Changes to the graph of a step, which `replay` lets run again; it defines what they may be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.host.causes import HostCause
from stepscope.errors import UsageError
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals

if TYPE_CHECKING:
    from stepscope.analysis.graph.step_graph import StepGraph

_NO_LANE = -2
"""No thread, and not what stands for a file without any."""


@dataclass(frozen=True)
class Changes:
    """Durations and edges of a graph after a change. Build them with `unchanged` and the methods.

    Attributes:
        is_kept: Whether each edge still holds.
        scaled: Without GPU work, the moments of threads that were scaled: which, by what factor,
            and of which threads (None: of all).
    """

    graph: StepGraph
    dur_ns: Int64Array
    delay_ns: Int64Array
    is_kept: BoolArray
    scaled: tuple[tuple[Intervals, float, tuple[int, ...] | None], ...] = ()

    def scale_work(self, nodes: BoolArray, factor: float) -> Changes:
        """GPU work takes `factor` of its time, from 0 to 1."""
        _check(factor)
        which = nodes & self.graph.is_gpu
        scaled = np.where(which, _scaled(self.dur_ns, factor), self.dur_ns)
        return replace(self, dur_ns=scaled)

    def shorten_work(self, dur_ns: Int64Array) -> Changes:
        """Each piece of GPU work takes no longer than given, one value per node."""
        dur = np.maximum(dur_ns, 0)
        np.minimum(self.dur_ns, dur, out=dur)
        np.copyto(dur, self.dur_ns, where=~self.graph.is_gpu)
        return replace(self, dur_ns=dur)

    def scale_host(
        self, moments: Intervals, factor: float = 0.0, lanes: tuple[int, ...] | None = None
    ) -> Changes:
        """Host time within some moments takes `factor` of what it takes now.

        Args:
            moments: Which; parts that no thread works in have no effect, nor have one-off calls,
                which are no part of the steady state.
            factor: From 0 to 1.
            lanes: Threads; default: all of the graph.
        """
        _check(factor)
        graph = self.graph
        moments = intervals.difference(moments, graph.host.of(HostCause.ONE_OFF))
        which = ~graph.is_gpu
        if lanes is not None and not graph.host_lanes <= set(lanes):
            which &= np.logical_or.reduce([graph.lane == lane for lane in lanes or (_NO_LANE,)])
        rows = np.nonzero(which)[0]
        start, end = graph.start_ns[rows], graph.end_ns[rows]
        inside = intervals.covered(moments, start, end)
        less = inside - _scaled(inside, factor)
        same = np.zeros(len(rows), np.int64)
        for lane in graph.host_lanes if graph.host_scale != 1.0 else ():
            unslowed = intervals.intersection(moments, graph.unslowed_of(lane))
            inside = intervals.covered(unslowed, start, end)
            same = np.where(graph.lane[rows] == lane, inside - _scaled(inside, factor), same)
        shortened = self._shorten(rows, self._unslowed(less - same) + same)
        if graph.is_gpu.any():
            return shortened
        return replace(shortened, scaled=(*self.scaled, (moments, factor, lanes)))

    def shorten_pieces(
        self, rows: Int64Array, less_ns: Int64Array, *, are_waits: bool = False
    ) -> Changes:
        """Some pieces of threads take so much less time, one value per row, never negative.

        Times are those measured: what recording added to them is taken off
        (`StepGraph.host_scale`), unless it is waits for input that are shorter.
        """
        return self._shorten(rows, less_ns if are_waits else self._unslowed(less_ns))

    def _unslowed(self, measured_ns: Int64Array) -> Int64Array:
        if self.graph.host_scale == 1.0:
            return measured_ns
        unslowed: Int64Array = np.ceil(measured_ns * self.graph.host_scale).astype(np.int64)
        return unslowed

    def _shorten(self, rows: Int64Array, less_ns: Int64Array) -> Changes:
        """Of a wait for a batch, the batch comes so much sooner after the one before."""
        dur = self.dur_ns.copy()
        dur[rows] = np.maximum(dur[rows] - less_ns, 0)
        return replace(self, dur_ns=dur)._with_sooner_batches(rows, less_ns)

    def _with_sooner_batches(self, rows: Int64Array, less_ns: Int64Array) -> Changes:
        graph = self.graph
        arrivals = graph.arrival_edges
        if not len(arrivals):
            return self
        less = np.zeros(len(graph), np.int64)
        less[rows] = less_ns
        waits = graph.target_of(arrivals)
        delay, is_kept = self.delay_ns.copy(), self.is_kept.copy()
        delay[arrivals] -= less[waits]
        is_kept[arrivals[less[waits] >= graph.dur_ns[waits]]] = False
        return replace(self, delay_ns=delay, is_kept=is_kept)

    def with_batches_as_measured(self) -> Changes:
        """Batches come as soon as they did, although few do not show that they always will."""
        delay = self.delay_ns.copy()
        delay[self.graph.next_batch_edges] -= self.graph.batches_later_ns
        return replace(self, delay_ns=delay)

    def drop_edges(self, edges: BoolArray) -> Changes:
        """Some dependencies are gone. The order of a thread and of a stream always stays."""
        order = self.graph.edges_of(EdgeKind.THREAD, EdgeKind.STREAM)
        return replace(self, is_kept=self.is_kept & ~(edges & ~order))

    def and_also(self, other: Changes) -> Changes:
        """Both changes at once: of each duration and delay the shorter one.

        Without GPU work no launch divides what a thread does, and one piece holds several causes:
        its moments that only one of the changes shortens are all shortened.
        """
        delay = self.delay_ns
        if other.delay_ns is not delay:
            delay = np.minimum(delay, other.delay_ns)
        both = self
        for moments, factor, lanes in other.scaled:
            rest = moments
            for known, _, _ in self.scaled:
                rest = intervals.difference(rest, known)
            both = both.scale_host(rest, factor, lanes)
        return replace(
            both,
            dur_ns=np.minimum(both.dur_ns, other.dur_ns),
            delay_ns=delay,
            is_kept=self.is_kept & other.is_kept,
        )

    def drop_waits_of_calls(self, calls: npt.ArrayLike) -> Changes:
        """Some blocking calls return at once, whatever the device is doing."""
        graph = self.graph
        return self.drop_edges(
            (graph.edge_kind == EdgeKind.SYNC) & np.isin(graph.call, np.asarray(calls))
        )


def _scaled(durations: Int64Array, factor: float) -> Int64Array:
    """Durations times a factor, rounded down, so that 1 leaves them as they are."""
    if factor == 1.0:
        return durations
    scaled: Int64Array = np.floor(durations * factor).astype(np.int64)
    return scaled


def _check(factor: float) -> None:
    if not 0.0 <= factor <= 1.0:
        raise UsageError(f"a factor of {factor} is not between 0 and 1: causes only shrink")
