"""Questions about ancestors, asked of all rows of a forest at once.

A forest is an array with the row of each row's parent, -1 for a root. Parents may come before or
after their children; there are no cycles. All take linear time, or that times the logarithm of the
depth, even if every row lies in the one before, as in damaged files.

The loop only looks at rows that come from `range`, or from `parent` and at least 0.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.derive.nesting import RowNumbers
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit

_Number = TypeVar("_Number", bound=np.signedinteger[Any])
_Rows = npt.NDArray[_Number]


def nearest(parent: _Rows[_Number], chosen: BoolArray) -> _Rows[_Number]:
    """For each row itself if it is chosen, else the nearest chosen row above it; -1: none.

    Numbers of rows have the type of those in `parent`, and so they do in `nearest_above`.
    """
    found = parent.copy()
    found[chosen] = np.nonzero(chosen)[0]
    pending = np.nonzero((found >= 0) & ~chosen[found])[0]
    while len(pending):
        # Doubling: what a row above has passed over, so does this one.
        found[pending] = found[found[pending]]
        here = found[pending]
        pending = pending[(here >= 0) & ~chosen[here]]
    return found


def nearest_of(parent: _Rows[_Number], rows: Int64Array, chosen: BoolArray) -> _Rows[_Number]:
    """For each of some rows, or -1 for none, what `nearest` says of it; -1 for none.

    The rows are walked up together. Where that takes more steps than there are rows in all, the
    rest is looked up in `nearest`.
    """
    found = rows.astype(parent.dtype)
    pending = np.flatnonzero(found >= 0)
    steps_left = len(parent)
    while len(pending):
        here = found[pending]
        pending = pending[(here >= 0) & ~chosen[here]]
        steps_left -= len(pending)
        if steps_left < 0:
            found[pending] = nearest(parent, chosen)[found[pending]]
            break
        found[pending] = parent[found[pending]]
    return found


def nearest_above(parent: _Rows[_Number], rows: Int64Array, chosen: BoolArray) -> _Rows[_Number]:
    """For each of some rows the nearest chosen row strictly above it; -1: none."""
    return nearest_of(parent, parent[rows].astype(np.int64, copy=False), chosen)


def highest(parent: RowNumbers, chosen: BoolArray) -> Int64Array:
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
    keys, number = _dense(keys), len(parent)
    first = np.empty(number, np.bool_)
    first_child = np.full(number + 1, -1, np.int64)
    around = np.zeros(int(keys.max(initial=-1)) + 1, np.int64)
    next_sibling = np.empty(number, np.int64)
    jit(outermost_by_loop)(parent, keys, first_child, next_sibling, around, first)
    return first


def _dense(keys: Int64Array) -> Int64Array:
    """Keys that are equal where these are, from 0, in a range not much larger than their number."""
    least = int(keys.min(initial=0))
    if int(keys.max(initial=0)) - least <= 4 * len(keys):
        # As they are: to number the distinct ones takes a sort.
        return (keys - least).astype(np.int64, copy=False)
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def depths(parent: Int64Array) -> Int64Array:
    """For each row the number of rows above it."""
    depth = (parent >= 0).astype(np.int64)
    ancestor = parent.copy()
    below = np.nonzero(ancestor >= 0)[0]
    while len(below):
        # Doubling: an ancestor's own count covers as many levels as have been counted so far.
        depth[below] += depth[ancestor[below]]
        ancestor[below] = ancestor[ancestor[below]]
        below = below[ancestor[below] >= 0]
    return depth


def levels(depth: npt.NDArray[np.integer[Any]], rows: Int64Array) -> list[Int64Array]:
    """Some rows in groups of equal depth, from the roots down."""
    order = rows[np.argsort(depth[rows], kind="stable")]
    edges = np.nonzero(np.diff(depth[order]))[0] + 1
    return [part for part in np.split(order, edges) if len(part)]


def outermost_by_loop(
    parent: Int64Array,
    keys: Int64Array,
    first_child: Written[np.int64],
    next_sibling: Written[np.int64],
    around: Written[np.int64],
    first: Written[np.bool_],
) -> None:
    """Fills in `is_outermost` in linear time: depth first, counting the keys of the rows around.

    Args:
        first_child: -1 for each row, and once more for what is above the roots.
        next_sibling: As many numbers as rows.
        around: 0 for each key from 0 to the largest.
        first: The result.
    """
    number = len(parent)
    for before in range(number):
        row = number - 1 - before
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
