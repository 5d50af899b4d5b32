"""Questions about ancestors, asked of all rows of a forest at once.

A forest is an array with the row of each row's parent, -1 for a root. Parents may come before or
after their children; there are no cycles. For many rows the loops are compiled; for few, importing
the compiler costs more than it saves, and vectors do the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.derive.nesting import NUMBA_PAYS_FROM


def nearest(parent: Int64Array, chosen: BoolArray) -> Int64Array:
    """For each row itself if it is chosen, else the nearest chosen row above it; -1: none."""
    if len(parent) >= NUMBA_PAYS_FROM:
        found: Int64Array = _compiled("nearest")(parent, chosen)
        return found
    return nearest_vectorised(parent, chosen)


def nearest_above(parent: Int64Array, rows: Int64Array, chosen: BoolArray) -> Int64Array:
    """For each of some rows the nearest chosen row strictly above it; -1: none."""
    above = parent[rows]
    if len(parent) == 0:
        return above
    found: Int64Array = np.where(above >= 0, nearest(parent, chosen)[above], -1)
    return found


def is_outermost(parent: Int64Array, keys: Int64Array) -> BoolArray:
    """For each row whether no row above it has the same key."""
    if len(parent) >= NUMBA_PAYS_FROM:
        found: BoolArray = _compiled("outermost")(parent, keys)
        return found
    return outermost_vectorised(parent, keys)


def depths(parent: Int64Array) -> Int64Array:
    """For each row the number of rows above it."""
    if len(parent) >= NUMBA_PAYS_FROM:
        found: Int64Array = _compiled("depths")(parent)
        return found
    return depths_vectorised(parent)


def depths_vectorised(parent: Int64Array) -> Int64Array:
    """`depths` with numpy alone."""
    depth = (parent >= 0).astype(np.int64)
    ancestor = parent.copy()
    below = np.nonzero(ancestor >= 0)[0]
    while len(below):
        # Doubling: an ancestor's own count covers as many levels as have been counted so far.
        depth[below] += depth[ancestor[below]]
        ancestor[below] = ancestor[ancestor[below]]
        below = below[ancestor[below] >= 0]
    return depth


def nearest_vectorised(parent: Int64Array, chosen: BoolArray) -> Int64Array:
    """`nearest` with numpy alone: all rows that still search go one step up at once."""
    found = np.arange(len(parent), dtype=np.int64)
    pending = np.nonzero(~chosen)[0]
    while len(pending):
        found[pending] = parent[found[pending]]
        here = found[pending]
        pending = pending[here >= 0]
        pending = pending[~chosen[found[pending]]]
    return found


def outermost_vectorised(parent: Int64Array, keys: Int64Array) -> BoolArray:
    """`is_outermost` with numpy alone."""
    first = np.ones(len(parent), np.bool_)
    asking = np.nonzero(parent >= 0)[0]
    above = parent[asking]
    while len(asking):
        same = keys[above] == keys[asking]
        first[asking[same]] = False
        asking, above = asking[~same], parent[above[~same]]
        going = above >= 0
        asking, above = asking[going], above[going]
    return first


def nearest_by_loop(parent: Int64Array, chosen: BoolArray) -> Int64Array:
    """`nearest` in linear time: what one row has found, those on its way know too."""
    number = len(parent)
    found = np.empty(number, np.int64)
    is_known = np.zeros(number, np.bool_)
    for row in range(number):
        at = row
        while at >= 0 and not chosen[at] and not is_known[at]:
            at = parent[at]
        answer = at
        if at >= 0 and not chosen[at]:
            answer = found[at]
        on_the_way = row
        while on_the_way != at:
            found[on_the_way] = answer
            is_known[on_the_way] = True
            on_the_way = parent[on_the_way]
        if at >= 0 and chosen[at]:
            found[at] = at
    return found


def outermost_by_loop(parent: Int64Array, keys: Int64Array) -> BoolArray:
    """`is_outermost`, row by row."""
    number = len(parent)
    first = np.ones(number, np.bool_)
    for row in range(number):
        above = parent[row]
        while above >= 0:
            if keys[above] == keys[row]:
                first[row] = False
                break
            above = parent[above]
    return first


def depths_by_loop(parent: Int64Array) -> Int64Array:
    """`depths` in linear time: each row is walked past once."""
    number = len(parent)
    depth = np.full(number, -1, np.int64)
    for row in range(number):
        at = row
        steps = 0
        while at >= 0 and depth[at] < 0:
            at = parent[at]
            steps += 1
        below = depth[at] + steps if at >= 0 else steps - 1
        on_the_way = row
        while on_the_way != at:
            depth[on_the_way] = below
            below -= 1
            on_the_way = parent[on_the_way]
    return depth


_LOOPS: dict[str, Callable[..., Any]] = {
    "nearest": nearest_by_loop,
    "outermost": outermost_by_loop,
    "depths": depths_by_loop,
}


@functools.cache
def _compiled(name: str) -> Any:
    from stepscope.trace.arrays.compiled import compiled

    return compiled(_LOOPS[name])
