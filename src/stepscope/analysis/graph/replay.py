"""What a step would take if a cause were gone: the graph of the step, replayed with other weights.

A change shrinks durations (of GPU work, or of moments of a thread), or takes away dependencies
(a blocking call no longer waits). Nothing is moved to another stream or thread. Durations and
delays only ever shrink here, so no replay is slower than the measured steps. The replay without a
change gives the measured times to the nanosecond, but for when waits begin that only other nodes
end. Savings refer to the steady state (`steady_state`), with and without the change.

A wait for a batch that came late once keeps its length, as nothing shows when the workers could
have had it. Other work that becomes shorter would hide it, which no change but one of the input
brings: such a change saves at most what it saves if these batches are in time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.steady_state import replayed_durations, run_passes
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.trace.arrays.intervals import Int64Array

_HOST_BOUND = 0.98
"""Share of the step from which the host's own time limits it."""
_HOST_WAITS = (EdgeKind.SYNC, EdgeKind.QUEUE, EdgeKind.ARRIVAL)
"""Edges by which a host waits for devices or batches."""


@dataclass(frozen=True)
class Replay:
    """A graph's steps with changed weights.

    Attributes:
        step_ends_ns: End of each step, as `StepGraph.step_ends_ns`, if they begin as the measured
            ones did.
        total_ns: From the measured start of the first step to the end of the last, likewise.
        mean_step_ns: Mean duration of the steps: what they take now less the saving.
        saving_ns: What a mean step is shorter by in the steady state than the measured steps are
            (those without recording, where that slowed them); never negative, and never more than
            the mean step.
        saving_share: The same as a share of the step.
        steady_state_ns: What the steps take together in the steady state.
        start_ns: Start of each node, if the steps begin as the measured ones did.
        end_ns: Likewise.
        delay_ns: Delay of each edge.
    """

    step_ends_ns: Int64Array
    total_ns: int
    mean_step_ns: int
    saving_ns: int
    saving_share: float
    steady_state_ns: int
    start_ns: Int64Array
    end_ns: Int64Array
    delay_ns: Int64Array


def unchanged(graph: StepGraph) -> Changes:
    """The graph as it was measured."""
    dur_ns = graph.session.once(unchanged, lambda: replayed_durations(graph, graph.host_scale))
    is_kept = np.ones(len(graph.source), np.bool_)
    return Changes(graph, dur_ns, graph.delay_ns, is_kept)


def replay(changes: Changes) -> Replay:
    """Let the steps run again."""
    graph = changes.graph
    delay_ns = _replayed_delays(changes)
    passes = run_passes(graph, changes.dur_ns, delay_ns, changes.is_kept)
    ends = graph.step_rows.ends(passes.end_ns, len(graph.steps), graph.begin_ns)
    saved_ns = graph.steady_state_ns - passes.cycle_ns
    rare_ns = graph.rare_wait_ns
    is_about_input = bool((changes.dur_ns < rare_ns).any())
    if saved_ns > 0 and rare_ns.any() and not is_about_input:
        before_ns, after_ns = (
            _cycle_ns(replace(one, dur_ns=one.dur_ns - rare_ns))
            for one in (unchanged(graph), changes)
        )
        saved_ns = min(saved_ns, before_ns - after_ns)
    saving = round(saved_ns / max(1, len(graph.steps)))
    step = graph.replayed_step_ns
    saving = min(max(0, saving), step)
    return Replay(
        ends,
        int(ends[-1]) - graph.begin_ns,
        step - saving,
        saving,
        saving / max(1, step),
        graph.steady_state_ns - saved_ns,
        passes.start_ns,
        passes.end_ns,
        delay_ns,
    )


def host_alone_ns(changes: Changes) -> int:
    """What the main thread needs for the steps if neither devices nor batches make it wait."""
    graph = changes.graph
    if not len(graph.host_rows):
        return 0
    waits = graph.session.once(host_alone_ns, lambda: graph.edges_of(*_HOST_WAITS))
    alone = replace(
        changes,
        dur_ns=np.where(graph.is_gpu, 0, changes.dur_ns),
        is_kept=changes.is_kept & ~waits,
    )
    return _cycle_ns(alone)


def is_host_bound(changes: Changes, again: Replay) -> bool:
    """Whether the host's own time limits the replayed steps, although they save something."""
    return host_alone_ns(changes) >= _HOST_BOUND * again.steady_state_ns


def _cycle_ns(changes: Changes) -> int:
    delay_ns = _replayed_delays(changes)
    return run_passes(changes.graph, changes.dur_ns, delay_ns, changes.is_kept).cycle_ns


def _replayed_delays(changes: Changes) -> Int64Array:
    """Delay of each edge. Work that overlaps its predecessor on a stream keeps its share of it."""
    graph = changes.graph
    delay = changes.delay_ns
    early, source, old = graph.early_edges
    new = changes.dur_ns[source]
    changed = np.flatnonzero(old != new)
    if delay is not graph.delay_ns:
        changed = changed[delay[early[changed]] < 0]
    if len(changed):
        early, old, new = early[changed], old[changed], new[changed]
        delay = delay.copy()
        delay[early] = -((-delay[early]) * new // np.maximum(old, 1))
    return delay
