"""What a step would take if a cause were gone: the graph of the step, replayed with other weights.

A change shrinks durations (of GPU work, or of moments of a thread), or takes away dependencies
(a blocking call no longer waits). Nothing is moved to another stream or thread. Durations and
delays only ever shrink here, so no replay is slower than the measured steps, and the replay
without a change gives the measured times to the nanosecond. What a change saves is told of the long
run (`long_run`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.long_run import long_run_ns, without_waits_for_backlog
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.graph.sweeps import run_nodes
from stepscope.trace.arrays.intervals import Int64Array


@dataclass(frozen=True)
class Replay:
    """A graph's steps with changed weights.

    Attributes:
        step_ends_ns: End of each step, as `StepGraph.step_ends_ns`.
        total_ns: From the measured start of the first step to the end of the last.
        mean_step_ns: Mean duration of the steps: the measured mean less the saving.
        saving_ns: What a mean step is shorter by in the long run than the measured steps are;
            never negative, and never more than the mean step. Of both what the steps take in the
            long run is compared (`long_run`): at the start of the window the host may be less ahead
            of the devices than later. With GPU work a step takes at least as long as the host alone
            needs for it: the host may also be ahead by work that it did before the window, and the
            device would soon catch up.
        is_host_bound: Whether the saving ends where the host's own time begins to count.
    """

    step_ends_ns: Int64Array
    total_ns: int
    mean_step_ns: int
    saving_ns: int
    is_host_bound: bool


def unchanged(graph: StepGraph) -> Changes:
    """The graph as it was measured."""
    return Changes(graph, graph.dur_ns, graph.delay_ns, np.ones(len(graph.source), np.bool_))


def replay(changes: Changes) -> Replay:
    """Let the steps run again."""
    graph = changes.graph
    delay = _delays(changes)
    start, end = _times(changes, delay)
    # Of millions of nodes, each array counts: none is kept for longer than it is needed.
    ends = graph.step_rows.ends(end, len(graph.steps), graph.begin_ns)
    del end
    total = long_run_ns(graph, changes.dur_ns, delay, changes.is_kept, start, ends)
    del start
    least = _least_total(changes, delay, total)
    saving = round((graph.long_run_ns - least) / max(1, len(graph.steps)))
    saving = min(max(0, saving), graph.mean_step_ns)
    mean = graph.mean_step_ns - saving
    return Replay(ends, int(ends[-1]) - graph.begin_ns, mean, saving, least > total)


def replayed_times(changes: Changes) -> tuple[Int64Array, Int64Array]:
    """Start and end of each node when the steps run again."""
    return _times(changes, _delays(changes))


def _delays(changes: Changes) -> Int64Array:
    """Delay of each edge. Work that overlaps its predecessor on a stream keeps its share of it."""
    graph = changes.graph
    measured = graph.dur_ns
    source = graph.source
    delay = changes.delay_ns
    early = graph.early_edges
    if delay is not graph.delay_ns:
        early = np.flatnonzero((delay < 0) & (source >= 0))
    if len(early):
        old, new = measured[source[early]], changes.dur_ns[source[early]]
        delay = delay.copy()
        delay[early] = -((-delay[early]) * new // np.maximum(old, 1))
    return delay


def _least_total(changes: Changes, delay: Int64Array, total_ns: int) -> int:
    """How long the steps take in the long run: on the devices, or on the host if that is longer.

    A window may begin while the devices still have earlier work, and the host is ahead by what it
    launched meanwhile. In the long run it is not: a step takes at least what the host needs for it
    if it never waits for a device. That may be more than the step that was measured, which then
    stays as it is.
    """
    graph = changes.graph
    measured_ns = graph.long_run_ns
    if not graph.steps or total_ns >= min(measured_ns, graph.host_time_ns):
        return total_ns
    alone_ns = host_alone_ns(changes, delay)
    return max(total_ns, min(alone_ns, measured_ns))


def host_alone_ns(changes: Changes, delay: Int64Array | None = None) -> int:
    """What the main thread needs for the steps if no device ever makes it wait.

    Args:
        changes: What is changed.
        delay: Delay of each edge; default: those of the changes.
    """
    graph = changes.graph
    rows = graph.host_rows
    if not len(rows):
        return 0
    dur = np.where(graph.is_gpu, 0, changes.dur_ns)
    dur = without_waits_for_backlog(graph, dur)
    is_kept = changes.is_kept & (graph.edge_kind != EdgeKind.SYNC)
    alone = replace(changes, dur_ns=dur, is_kept=is_kept)
    start, end = _times(alone, changes.delay_ns if delay is None else delay)
    return int(end[rows].max() - start[rows].min())


def _times(changes: Changes, delay: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Start and end of each node, with these delays."""
    return run_nodes(changes.graph, changes.dur_ns, delay, changes.is_kept)
