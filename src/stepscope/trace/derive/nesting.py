"""Nesting of the events of each lane: parent, depth, self time.

Definitions
    An event contains another of its lane if it starts no later, is still open when the other
    starts, and ends no earlier. Of two events with the same span the one with the outer category
    contains the other (Python, annotation, operator, runtime, driver), and within a category the
    one that comes first in the file. An event without duration contains nothing.
    The parent of an event is the innermost event that contains it: of those that do, the last to
    start. Roots have none.
    Self time is the duration less the union of the children's parts inside it. It is never
    negative, and the self times of a lane whose events all nest add up to its covered time.
    Events that overlap without nesting happen (frames that are cut off, lanes that hold several
    threads' work): each gets the innermost event that contains it, and is counted as crossing if
    a sibling that started before it is still open.

Files that hold whole microseconds, or doubles too coarse for nanoseconds, show children that
outlive their parents by the rounding. An end may therefore lie after the parent's by up to the
clock's resolution (`clock_resolution_ns`), and only the part inside counts for self time.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array, merge_by_group
from stepscope.trace.arrays.ordering import by_group_and_time

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBA_PAYS_FROM = 500_000
"""Rows from which the compiled loop is used; below, importing numba costs more than it saves."""

COARSE_CLOCKS_NS = (1000, 250)
"""Steps of the clocks that files were written with: whole microseconds until 2023, then doubles of
microseconds since 1970, which are 0.25 µs apart. Today's files hold exact nanoseconds."""


@dataclass(frozen=True)
class Nesting:
    """Row for row beside the events given to `nest`."""

    parent: Int64Array
    """Row of the parent; -1 for a root."""

    depth: npt.NDArray[np.int32]
    """0 for a root."""

    self_ns: Int64Array

    crossing: npt.NDArray[np.bool_]
    """Whether a sibling that started before it is still open, so that the two cross."""


def clock_resolution_ns(starts: Int64Array) -> int:
    """The step of the clock that the starts were taken from: one of `COARSE_CLOCKS_NS`, or 0.

    0 means exact nanoseconds. Fewer than two distinct starts tell nothing and count as exact.
    """
    if len(starts) < 2:
        return 0
    step = int(np.gcd.reduce(starts - starts[0]))
    return next((clock for clock in COARSE_CLOCKS_NS if step and step % clock == 0), 0)


def nest(
    lanes: npt.NDArray[np.generic],
    starts: Int64Array,
    durations: Int64Array,
    rank: npt.NDArray[np.generic] | None = None,
    tolerance_ns: int = 0,
) -> Nesting:
    """Nest the events of every lane.

    Args:
        lanes: Lane of each event, integers.
        starts: Start of each event, in ns.
        durations: Duration of each event, in ns, not negative.
        rank: Order among events with the same span, outer ones first; default: the order given.
        tolerance_ns: By how much a child's end may lie after its parent's.
    """
    number = len(starts)
    if number == 0:
        none = np.zeros(0, np.int64)
        return Nesting(none, none.astype(np.int32), none, none.astype(np.bool_))
    # Outer ones first: the longest, and of those with the same span the outer category.
    ties = (-durations,) if rank is None else (-durations, rank)
    order = by_group_and_time(lanes, starts, *ties)
    lane, start = lanes[order], starts[order]
    end = start + durations[order]
    new_lane = np.concatenate(([True], lane[1:] != lane[:-1]))
    method = _nest_compiled() if number >= NUMBA_PAYS_FROM else nest_vectorised
    parent_position, depth, self_time, crossing = method(new_lane, start, end, tolerance_ns)

    parent = np.empty(number, np.int64)
    parent[order] = np.where(parent_position >= 0, order[parent_position], -1)
    return Nesting(
        parent,
        _scatter(depth, order),
        _scatter(self_time, order),
        _scatter(crossing, order),
    )


def _scatter(values: npt.NDArray[np.generic], order: npt.NDArray[np.generic]) -> npt.NDArray:  # type: ignore[type-arg]
    placed = np.empty(len(values), values.dtype)
    placed[order] = values
    return placed


_Columns = tuple[Int64Array, npt.NDArray[np.int32], Int64Array, npt.NDArray[np.bool_]]


def nest_vectorised(
    new_lane: npt.NDArray[np.bool_], start: Int64Array, end: Int64Array, tolerance: int
) -> _Columns:
    """Nest sorted rows with numpy alone.

    In sorted order every earlier row of the lane starts no later, so the parent is the nearest
    earlier row whose end suffices. All rows look for it at once: a candidate that does not suffice
    passes on to its own candidate, for what it has skipped suffices for the asking row even less.
    """
    number = len(start)
    needed = np.maximum(end - tolerance, start + 1)
    parent = np.where(new_lane, -1, np.arange(-1, number - 1, dtype=np.int64))
    crossing = np.zeros(number, np.bool_)
    open_rows = np.nonzero(parent >= 0)[0]
    while len(open_rows):
        candidate = parent[open_rows]
        too_short = end[candidate] < needed[open_rows]
        open_rows, candidate = open_rows[too_short], candidate[too_short]
        crossing[open_rows] |= end[candidate] > start[open_rows]
        parent[open_rows] = parent[candidate]
        open_rows = open_rows[parent[open_rows] >= 0]

    depth = (parent >= 0).astype(np.int32)
    ancestor = parent.copy()
    below = np.nonzero(ancestor >= 0)[0]
    while len(below):
        # Doubling: an ancestor's own count covers as many levels as have been counted so far.
        step = depth[ancestor[below]]
        jump = ancestor[ancestor[below]]
        depth[below] += step
        ancestor[below] = jump
        below = below[jump >= 0]

    inside = np.nonzero(parent >= 0)[0]
    within = parent[inside]
    group, first, last = merge_by_group(within, start[inside], np.minimum(end[inside], end[within]))
    self_time = end - start
    np.subtract.at(self_time, group, last - first)
    return parent, depth, self_time, crossing


def nest_by_loop(
    new_lane: npt.NDArray[np.bool_], start: Int64Array, end: Int64Array, tolerance: int
) -> _Columns:
    """Nest sorted rows with a stack, in one pass; numba compiles it for many rows.

    Rows that are too short for the row at hand never suffice for a later one that this row does
    not contain better, so they leave the stack for good: the pass is linear, whatever the input.
    """
    number = len(start)
    parent = np.empty(number, np.int64)
    depth = np.zeros(number, np.int32)
    self_time = end - start
    crossing = np.zeros(number, np.bool_)
    covered_to = start.copy()
    stack = np.empty(number, np.int64)
    top = -1
    for row in range(number):
        if new_lane[row]:
            top = -1
        needed = max(end[row] - tolerance, start[row] + 1)
        while top >= 0 and end[stack[top]] < needed:
            if end[stack[top]] > start[row]:
                crossing[row] = True
            top -= 1
        if top >= 0:
            outer = stack[top]
            parent[row] = outer
            depth[row] = depth[outer] + 1
            last = min(end[row], end[outer])
            fresh = last - max(start[row], covered_to[outer])
            if fresh > 0:
                self_time[outer] -= fresh
            covered_to[outer] = max(covered_to[outer], last)
        else:
            parent[row] = -1
        top += 1
        stack[top] = row
    return parent, depth, self_time, crossing


@functools.cache
def _nest_compiled() -> Callable[[npt.NDArray[np.bool_], Int64Array, Int64Array, int], _Columns]:
    from stepscope.trace.arrays.compiled import compiled

    return compiled(nest_by_loop)
