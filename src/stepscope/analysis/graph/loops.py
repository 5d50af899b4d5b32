"""Loops over the nodes and edges of the graph of the steps, compiled where there are many.

Each takes arrays, and most take lists of Python integers alike, which for few nodes are quicker
to walk than arrays, without a compiler.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

COMPILED_PAYS_FROM = 100_000
"""Nodes from which compiled loops are used; below, importing numba costs more than it saves."""


def sweep(
    first_edge: Any,
    source: Any,
    delay: Any,
    is_kept: Any,
    dur: Any,
    origin: int,
    start: Any,
    end: Any,
) -> None:
    """Fill in start and end of each node: it starts at the latest of what it depends on."""
    for node in range(len(dur)):
        latest = origin
        for edge in range(first_edge[node], first_edge[node + 1]):
            if is_kept[edge]:
                before = origin
                if source[edge] >= 0:
                    before = end[source[edge]]
                latest = max(latest, before + delay[edge])
        start[node] = latest
        end[node] = latest + dur[node]


def walk_back(
    first_edge: Any,
    source: Any,
    delay: Any,
    start: Any,
    end: Any,
    origin: int,
    node: int,
    path: Any,
    path_edge: Any,
) -> int:
    """Fill in the nodes of the path to a node, the last first, and the edge that binds each.

    Of several edges that bind a node the first is taken. Returns the number of nodes.
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


def group_by_target(target: Any, next_place: Any, order: Any) -> None:
    """Fill in the edges by target, those of one target in the order given.

    `next_place` holds for each node where its edges begin, and is used up.
    """
    for edge in range(len(target)):
        place = next_place[target[edge]]
        order[place] = edge
        next_place[target[edge]] = place + 1


def mark_candidates(
    start: Any, leaves: Any, first_edge: Any, far_ns: int, clear_ns: int, marks: Any
) -> None:
    """Mark the edges that a node may have waited for: 1; 2 where no other edge comes near.

    It may have waited for those that leave last, less than `far_ns` before its start; those that
    leave less than `clear_ns` before them are near.
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


def bind(start: Any, leaves: Any, kind: Any, typical: Any, first_edge: Any, delay: Any) -> None:
    """Fill in delays: what is typical of the kind as far as it fits, and of one edge all of it.

    That one is the edge by which a node would start last; of several the first.
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


@functools.cache
def compiled_loop(loop: Callable[..., Any]) -> Callable[..., Any]:
    """One of these loops, compiled for arrays."""
    from numba import boolean, int8, int64

    from stepscope.trace.arrays.compiled import array_of, compiled

    read, written = array_of(int64), array_of(int64, written=True)
    small, flags = array_of(int8), array_of(boolean)
    marks = array_of(int8, written=True)
    arguments: dict[Callable[..., Any], tuple[Any, ...]] = {
        sweep: (read, read, read, flags, read, int64, written, written),
        walk_back: (read, read, read, read, read, int64, int64, written, written),
        group_by_target: (read, written, written),
        mark_candidates: (read, read, read, int64, int64, marks),
        bind: (read, read, small, read, read, written),
    }
    found: Callable[..., Any] = compiled(loop, arguments[loop])
    return found
