"""Lets the nodes of a graph run: when each starts and ends, given durations, delays and edges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.analysis.graph.loops import SWEEPS_PAY_FROM, sweep
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.machine.loops import WorkSoFar, in_machine_code

if TYPE_CHECKING:
    from stepscope.analysis.graph.step_graph import StepGraph

_SWEPT = WorkSoFar()
"""Nodes that this process has swept."""


def run_nodes(
    graph: StepGraph,
    dur_ns: Int64Array,
    delay_ns: Int64Array,
    is_kept: BoolArray,
    devices_from_ns: int | None = None,
) -> tuple[Int64Array, Int64Array]:
    """Start and end of each node.

    Args:
        graph: The graph.
        dur_ns: Duration of each node.
        delay_ns: Delay of each edge.
        is_kept: Whether each edge holds.
        devices_from_ns: GPU work starts no earlier; default: the graph's origin.
    """
    first = graph.origin_ns
    devices_from = first if devices_from_ns is None else max(first, devices_from_ns)
    start, end = np.empty(len(graph), np.int64), np.empty(len(graph), np.int64)
    columns = (graph.first_edge, graph.source, delay_ns, is_kept, dur_ns, graph.is_gpu)
    if _SWEPT.pays_with(len(graph), SWEEPS_PAY_FROM):
        in_machine_code(sweep)(*columns, first, devices_from, start, end)
        return start, end
    # Lists of Python integers are several times faster to walk than arrays, without a compiler.
    edge, source, delay, kept, dur, is_gpu = (column.tolist() for column in columns)
    starts: Any = start.tolist()
    ends: Any = end.tolist()
    sweep(edge, source, delay, kept, dur, is_gpu, first, devices_from, starts, ends)
    return np.array(starts, np.int64), np.array(ends, np.int64)
