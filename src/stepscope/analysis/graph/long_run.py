"""How long the steps of a graph take in the long run, however the window happened to begin.

A window may begin while the devices are idle, because the recorder held the host up or the step
before ended with a wait. In the steps that follow, the host may have launched work ahead, which
hides what it does meanwhile; only the first step shows it. The same holds for a change that lets
the host run ahead: the first step of its replay begins as the measured one did, and the last
leaves an advantage to a step that is not in the window.

The lead of the host where a step begins is how long the devices still have to do for the steps
before. The lead in the long run is the median over the steps after the first, of an even number the
lower one. If the first step began with another, the steps are run once more with devices that have
so much more, or less, to do first, and take what they take from then on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.graph.sweeps import run_nodes
from stepscope.analysis.host.causes import HostCause
from stepscope.trace.arrays.intervals import BoolArray, Int64Array

if TYPE_CHECKING:
    from stepscope.analysis.graph.step_graph import StepGraph


def long_run_ns(
    graph: StepGraph,
    dur_ns: Int64Array,
    delay_ns: Int64Array,
    is_kept: BoolArray,
    start_ns: Int64Array,
    step_ends_ns: Int64Array,
) -> int:
    """How long all steps take together.

    Args:
        graph: The graph.
        dur_ns: Duration of each node.
        delay_ns: Delay of each edge.
        is_kept: Whether each edge holds.
        start_ns: Start of each node with these, from the window's own start.
        step_ends_ns: End of each step likewise.
    """
    more_ns = _more_lead_ns(graph, start_ns, step_ends_ns)
    if not more_ns:
        return int(step_ends_ns[-1]) - graph.begin_ns
    if more_ns < 0:
        delay_ns = _with_less_backlog(graph, delay_ns, -more_ns)
        dur_ns = without_waits_for_backlog(graph, dur_ns, -more_ns)
    from_ns = graph.begin_ns + more_ns
    _, end = run_nodes(graph, dur_ns, delay_ns, is_kept, from_ns)
    ends = graph.step_rows.ends(end, len(graph.steps), from_ns)
    return int(ends[-1]) - from_ns


def _with_less_backlog(graph: StepGraph, delay_ns: Int64Array, less_ns: int) -> Int64Array:
    """The delays, if the devices were done that much sooner with the work before the steps."""
    backlog = np.flatnonzero((graph.source < 0) & graph.is_gpu[graph.target])
    less = delay_ns.copy()
    less[backlog] = np.maximum(less[backlog] - less_ns, 0)
    return less


def without_waits_for_backlog(
    graph: StepGraph, dur_ns: Int64Array, most_ns: int | None = None
) -> Int64Array:
    """The durations without what the main thread waits for work from before the steps.

    Args:
        graph: The graph.
        dur_ns: Duration of each node.
        most_ns: How much of such waits is gone, the last ones first; default: all.
    """
    rows = graph.host_rows[graph.start_ns[graph.host_rows] < graph.begin_ns]
    if not len(rows):
        return dur_ns
    until = np.minimum(graph.end_ns[rows], graph.begin_ns)
    causes = graph.host.divide(graph.main_lane, graph.start_ns[rows], until)
    waits = np.minimum(causes[HostCause.SYNCHRONISATION], dur_ns[rows])
    if most_ns is not None:
        later = np.cumsum(waits[::-1])[::-1] - waits
        waits = np.clip(most_ns - later, 0, waits)
    less = dur_ns.copy()
    less[rows] -= waits
    return less


def _more_lead_ns(graph: StepGraph, start_ns: Int64Array, step_ends_ns: Int64Array) -> int:
    """By how much the host's lead in the long run is larger than that at the start."""
    first = graph.first_host_rows
    if len(first) < 2 or first[0] < 0 or not graph.is_gpu.any():
        return 0
    known = np.flatnonzero(first[1:] >= 0) + 1
    if not len(known):
        return 0
    leads = np.sort(step_ends_ns[known - 1] - start_ns[first[known]])
    at_start_ns = max(0, graph.begin_ns - int(start_ns[first[0]]))
    return max(0, int(leads[(len(leads) - 1) // 2])) - at_start_ns
