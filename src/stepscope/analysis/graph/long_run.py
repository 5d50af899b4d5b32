"""How long the steps of a graph take in the long run, however the window happened to begin.

A window may begin while the devices are idle, because the recorder held the host up or the step
before ended with a wait. In the steps that follow, the host may have launched work ahead, which
hides what it does meanwhile; only the first step shows it. The same holds for a change that lets
the host run ahead: the first step of its replay begins as the measured one did, and the last
leaves an advantage to a step that is not in the window.

The lead of the host where a step begins is how long the devices still have to do for the steps
before. The lead in the long run is the median over the steps after the first, of an even number the
lower one. If the first step began with less, the steps are run once more with devices that have so
much more to do first, and take what they take from then on. A lead that was larger at the start
than later is another matter: see `replay`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stepscope.analysis.graph.sweeps import run_nodes
from stepscope.trace.arrays.intervals import BoolArray, Int64Array

if TYPE_CHECKING:
    from stepscope.analysis.graph.step_graph import StepGraph


def long_run_ns(
    graph: StepGraph,
    dur_ns: Int64Array,
    delay_ns: Int64Array,
    is_kept: BoolArray,
    times: tuple[Int64Array, Int64Array],
) -> int:
    """How long all steps take together.

    Args:
        graph: The graph.
        dur_ns: Duration of each node.
        delay_ns: Delay of each edge.
        is_kept: Whether each edge holds.
        times: Start and end of each node with these, from the window's own start.
    """
    ends = graph.step_rows.ends(times[1], len(graph.steps), graph.begin_ns)
    lead_ns = _missing_lead_ns(graph, times[0], ends)
    from_ns = graph.begin_ns + lead_ns
    if lead_ns:
        _, end = run_nodes(graph, dur_ns, delay_ns, is_kept, from_ns)
        ends = graph.step_rows.ends(end, len(graph.steps), from_ns)
    return int(ends[-1]) - from_ns


def _missing_lead_ns(graph: StepGraph, start_ns: Int64Array, step_ends_ns: Int64Array) -> int:
    """By how much the host's lead in the long run is larger than that at the start."""
    first = graph.first_host_rows
    if len(first) < 2 or first[0] < 0 or not graph.is_gpu.any():
        return 0
    known = np.flatnonzero(first[1:] >= 0) + 1
    if not len(known):
        return 0
    leads = np.sort(step_ends_ns[known - 1] - start_ns[first[known]])
    at_start_ns = max(0, graph.begin_ns - int(start_ns[first[0]]))
    return max(0, int(leads[(len(leads) - 1) // 2]) - at_start_ns)
