"""Loops over the nodes and edges of the graph of the steps, compiled where there are many.

Each takes arrays, and most take lists of Python integers alike, which for few nodes are quicker
to walk than arrays, without a compiler.

Nodes are numbered, and `first_edge` holds for each the number of its first edge, then the number of
all edges; columns of nodes and of edges are as long as there are nodes and edges. So whatever comes
from `range` or from these columns is the number of a node or an edge.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.machine.arrays import Written

COMPILED_PAYS_FROM = 100_000
"""Nodes from which compiled loops are used; below, loading them costs more than it saves."""

SWEEPS_PAY_FROM = 40_000
"""Nodes from which `sweep` is compiled, counting all sweeps of a process.

Lists of so many nodes are swept in the time that importing LLVM and loading the loop takes. A
diagnosis replays the steps ten times or more, and a process may judge hundreds of ranks."""


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


def group_by_target(
    target: Int64Array, next_place: Written[np.int64], order: Written[np.int64]
) -> None:
    """Fill in the edges by target, those of one target in the order given.

    `next_place` holds for each node where its edges begin, and is used up: it counts up to where
    those of the next node begin.
    """
    for edge in range(len(target)):
        place = next_place[target[edge]]
        order[place] = edge
        next_place[target[edge]] = place + 1


def mark_candidates(
    start: Int64Array,
    leaves: Int64Array,
    first_edge: Int64Array,
    far_ns: int,
    clear_ns: int,
    marks: Written[np.int8],
) -> None:
    """Mark the edges that a node may have waited for: 1; 2 where no other edge comes near.

    It may have waited for those that leave last, less than `far_ns` before its start; those that
    leave less than `clear_ns` before them are near. Every node has an edge.
    """
    for node in range(len(start)):
        first, last = first_edge[node], first_edge[node + 1]
        latest = leaves[first]
        for edge in range(first + 1, last):
            latest = max(latest, leaves[edge])
        rivals = 0
        for edge in range(first, last):
            if leaves[edge] > latest - clear_ns:
                rivals += 1
        room = start[node] - latest
        if 0 <= room < far_ns:
            for edge in range(first, last):
                if leaves[edge] == latest:
                    marks[edge] = 2 if rivals == 1 else 1


def bind(
    start: Int64Array,
    leaves: Int64Array,
    kind: npt.NDArray[np.int8],
    typical: Int64Array,
    first_edge: Int64Array,
    delay: Written[np.int64],
) -> None:
    """Fill in delays: what is typical of the kind as far as it fits, and of one edge all of it.

    That one is the edge by which a node would start last; of several the first. Every node has an
    edge, and `typical` holds a delay for every kind.
    """
    for node in range(len(start)):
        first, last = first_edge[node], first_edge[node + 1]
        binding = first
        for edge in range(first, last):
            usual = typical[kind[edge]]
            delay[edge] = min(usual, start[node] - leaves[edge])
            if leaves[edge] + usual > leaves[binding] + typical[kind[binding]]:
                binding = edge
        delay[binding] = start[node] - leaves[binding]
