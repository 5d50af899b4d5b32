"""Loops over the nodes and edges of the graph of the steps, which run compiled.

Nodes are numbered, and `first_edge` holds for each the number of its first edge, then the number of
all edges; columns of nodes and of edges are as long as there are nodes and edges. So whatever comes
from `range` or from these columns is the number of a node or an edge.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.machine.arrays import Written


def sweep(
    first_edge: Int64Array,
    source: Int64Array,
    delay: Int64Array,
    is_kept: BoolArray,
    dur: Int64Array,
    start: Written[np.int64],
    end: Written[np.int64],
) -> None:
    """Find start and end of each node: it starts at the latest of what it depends on.

    `start` holds when each may start at the earliest. Edges that are kept have a node as source,
    which is before the edge's target.
    """
    for node in range(len(dur)):
        latest = start[node]
        for edge in range(first_edge[node], first_edge[node + 1]):
            if is_kept[edge]:
                latest = max(latest, end[source[edge]] + delay[edge])
        start[node] = latest
        end[node] = latest + dur[node]


def walk_back(
    first_edge: Int64Array,
    source: Int64Array,
    delay: Int64Array,
    start: Int64Array,
    end: Int64Array,
    origin: int,
    node: int,
    path: Written[np.int64],
    path_edge: Written[np.int64],
) -> int:
    """Fill in the nodes of the path to a node, the last first, and the edge that binds each.

    Of several edges that bind a node the first is taken. Returns the number of nodes. Every node
    has an edge, whose source is a node before it, or negative; so the path ends, and has at most as
    many nodes as there are.
    """
    count = 0
    while node >= 0:
        binding = first_edge[node]
        for edge in range(first_edge[node], first_edge[node + 1]):
            before = origin
            if source[edge] >= 0:
                before = end[source[edge]]
            if before + delay[edge] == start[node]:
                binding = edge
                break
        path[count] = node
        path_edge[count] = binding
        count += 1
        node = source[binding]
    return count
