"""Questions about ancestors, asked of all rows of a forest at once.

A forest is an array with the row of each row's parent, -1 for a root. Parents may come before or
after their children; there are no cycles. For many rows the loops are compiled; for few, importing
the compiler costs more than it saves, and vectors do the same. All take linear time (vectors: times
the logarithm of the depth) even if every row lies in the one before, as in damaged files.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.derive.nesting import NUMBA_PAYS_FROM

SHALLOW_LEVELS = 256
"""Rows are walked up this many levels one by one; recorded calls are rarely nested as deeply."""


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


def highest(parent: Int64Array, chosen: BoolArray) -> Int64Array:
    """For each row the chosen row nearest to the root, among itself and those above; -1: none."""
    found = np.where(chosen, np.arange(len(parent), dtype=np.int64), -1)
    ancestor = parent.copy()
    below = np.nonzero(ancestor >= 0)[0]
    while len(below):
        # Doubling: an ancestor knows the answer for as many levels as have been asked so far.
        higher = found[ancestor[below]]
        found[below] = np.where(higher >= 0, higher, found[below])
        ancestor[below] = ancestor[ancestor[below]]
        below = below[ancestor[below] >= 0]
    return found


def is_outermost(parent: Int64Array, keys: Int64Array) -> BoolArray:
    """For each row whether no row above it has the same key."""
    if len(parent) < NUMBA_PAYS_FROM:
        first, is_complete = outermost_vectorised(parent, keys, SHALLOW_LEVELS)
        if is_complete:
            return first
    dense = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    found: BoolArray = _compiled("outermost")(parent, dense)
    return found


def depths(parent: Int64Array) -> Int64Array:
    """For each row the number of rows above it."""
    if len(parent) >= NUMBA_PAYS_FROM:
        found: Int64Array = _compiled("depths")(parent)
        return found
    return depths_vectorised(parent)


def levels(depth: npt.NDArray[np.integer[Any]], rows: Int64Array) -> list[Int64Array]:
    """Some rows in groups of equal depth, from the roots down."""
    order = rows[np.argsort(depth[rows], kind="stable")]
    edges = np.nonzero(np.diff(depth[order]))[0] + 1
    return [part for part in np.split(order, edges) if len(part)]


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
    """`nearest` with numpy alone."""
    found = parent.copy()
    found[chosen] = np.nonzero(chosen)[0]
    pending = np.nonzero((found >= 0) & ~chosen[found])[0]
    while len(pending):
        # Doubling: what a row above has passed over, so does this one.
        found[pending] = found[found[pending]]
        here = found[pending]
        pending = pending[(here >= 0) & ~chosen[here]]
    return found


def outermost_vectorised(
    parent: Int64Array, keys: Int64Array, levels: int
) -> tuple[BoolArray, bool]:
    """`is_outermost` with numpy alone, and whether that many levels were enough."""
    first = np.ones(len(parent), np.bool_)
    asking = np.nonzero(parent >= 0)[0]
    above = parent[asking]
    for _ in range(levels):
        if not len(asking):
            break
        same = keys[above] == keys[asking]
        first[asking[same]] = False
        asking, above = asking[~same], parent[above[~same]]
        going = above >= 0
        asking, above = asking[going], above[going]
    return first, not len(asking)


def nearest_by_loop(parent: Int64Array, chosen: BoolArray) -> Int64Array:
    """`nearest` in linear time: what one row has found, those on its way know too."""
    number = len(parent)
    found = np.empty(number, np.int64)
    is_known = np.empty(number, np.bool_)
    for row in range(number):
        is_known[row] = False
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
    """`is_outermost` in linear time: depth first, counting the keys of the rows around.

    Args:
        parent: The parent of each row.
        keys: The key of each row, from 0, in a range not much larger than the number of rows.
    """
    # Fills and a maximum as loops: numba takes a second to compile numpy's.
    number = len(parent)
    first = np.empty(number, np.bool_)
    if number == 0:
        return first
    first_child = np.empty(number + 1, np.int64)  # the last entry: the first root
    next_sibling = np.empty(number, np.int64)
    first_child[number] = -1
    largest_key = 0
    for row in range(number):
        first_child[row] = -1
        largest_key = max(largest_key, keys[row])
    around = np.empty(largest_key + 1, np.int64)
    for key in range(largest_key + 1):
        around[key] = 0
    for row in range(number - 1, -1, -1):
        above = parent[row] if parent[row] >= 0 else number
        next_sibling[row] = first_child[above]
        first_child[above] = row
    at = first_child[number]
    while at >= 0:
        first[at] = around[keys[at]] == 0
        around[keys[at]] += 1
        ahead = first_child[at]
        while at >= 0 and ahead < 0:  # leave rows until one of them has a sibling
            around[keys[at]] -= 1
            ahead = next_sibling[at]
            at = parent[at]
        at = ahead
    return first


def depths_by_loop(parent: Int64Array) -> Int64Array:
    """`depths` in linear time: each row is walked past once."""
    number = len(parent)
    depth = np.empty(number, np.int64)
    for row in range(number):
        depth[row] = -1
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
    from numba import boolean, int64

    from stepscope.trace.arrays.compiled import array_of, compiled

    # One signature each: read-only arrays and others would be compiled apart.
    numbers, truths = array_of(int64), array_of(boolean)
    takes = {
        "nearest": (numbers, truths),
        "outermost": (numbers, numbers),
        "depths": (numbers,),
    }
    return compiled(_LOOPS[name], takes[name])
