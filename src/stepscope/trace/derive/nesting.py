"""Nests the events of each lane: parent, depth, self time.

Definitions
    An event contains another event on its lane if it starts no later, is still open when the other
    starts, and ends no earlier. Of two events with the same span, the one with the outer category
    contains the other (Python, annotation, operator, runtime, driver); within a category, the one
    that comes first in the file. An event of duration 0 contains nothing.

    The parent of an event is the innermost event that contains it, which is the last of them to
    start. Roots have no parent.

    Self time is the duration minus the part covered by children. It is never negative, and if all
    events of a lane nest, their self times add up to the time the lane is covered.

    Events can overlap without nesting (truncated frames, lanes with the work of several threads).
    Each then gets the innermost event that contains it, and counts as crossing if a sibling that
    started earlier is still open.

In files with whole microseconds, or with doubles too coarse for nanoseconds, rounding can make
children outlive their parents. A child may therefore end after its parent by up to the resolution
of the clock (`clock_resolution_ns`). Only the part inside the parent counts for self time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.ordering import by_group_and_time
from stepscope.trace.categories import code_of
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit
from stepscope.trace.schema import Category

MOST_ROWS = 2**31 - 1
"""Rows that can be numbered in 32 bits. No recorder writes more events, and no more are nested."""

_OUTER_FIRST = (
    Category.PYTHON_FUNCTION,
    Category.USER_ANNOTATION,
    Category.CPU_OP,
    Category.RUNTIME,
    Category.DRIVER,
)


RowNumbers = npt.NDArray[np.signedinteger[Any]]
"""Numbers of rows; -1 for none. Those of events have 32 bits."""


@dataclass(frozen=True)
class Nesting:
    """The result of `nest`, row for row alongside its events."""

    parent: RowNumbers
    """Row of the parent; -1 for a root."""

    depth: npt.NDArray[np.int32]
    """0 for a root."""

    self_ns: Int64Array

    crossing: BoolArray
    """Whether a sibling that started earlier is still open, so that the two cross."""

    around: RowNumbers
    """The nearest chosen row strictly above each row; empty if none were looked for."""


def outer_first() -> npt.NDArray[np.int8]:
    """Returns the order of events with the same span: for each code of `Category`, its rank.

    The lower contains the higher. Categories that contain nothing by rule share the highest.
    """
    rank = np.full(len(Category), len(_OUTER_FIRST), np.int8)
    rank[[code_of(category) for category in _OUTER_FIRST]] = range(len(_OUTER_FIRST))
    return rank


def nest(
    lanes: npt.NDArray[np.generic],
    starts: Int64Array,
    durations: Int64Array,
    rank: npt.NDArray[np.generic] | None = None,
    tolerance_ns: int = 0,
    rows: RowNumbers | None = None,
    chosen: BoolArray | None = None,
) -> Nesting:
    """Nests the events of every lane.

    Args:
        durations: Duration of each event, in ns, not negative.
        rank: Order of events with the same span, outer events first. Default: the given order.
        tolerance_ns: How much later than its parent a child may end.
        rows: The events to nest, in order; the others are roots without children. Default: all.
        chosen: Events to look for above each event.
    """
    if len(durations) > MOST_ROWS:
        raise OverflowError(f"more than {MOST_ROWS:,} events")
    order, new_lane = _sorted_rows(lanes, starts, durations, rank, rows)
    number = len(starts)
    columns = (
        np.full(number, -1, np.int32),
        np.zeros(number, np.int32),
        durations.copy(),
        np.zeros(number, np.bool_),
    )
    wanted = np.zeros(0, np.bool_) if chosen is None else chosen
    around = np.full(len(wanted), -1, np.int32)
    # All rows of a lane may lie in one another. What the stack does not reach takes no memory.
    deepest = int(np.diff(np.flatnonzero(np.append(new_lane, True))).max(initial=0))
    stack, inner = np.empty(deepest, np.int32), np.empty(deepest, np.int32)
    jit(nest_by_loop)(
        order.astype(np.int32, copy=False), new_lane, starts, durations, tolerance_ns, wanted,
        stack, inner, np.empty(deepest, np.int64), *columns, around,
    )  # fmt: skip
    return Nesting(*columns, around)


def _sorted_rows(
    lanes: npt.NDArray[np.generic],
    starts: Int64Array,
    durations: Int64Array,
    rank: npt.NDArray[np.generic] | None,
    rows: RowNumbers | None,
) -> tuple[RowNumbers, BoolArray]:
    """Returns the rows to nest by lane and start; of one start, outer events first.

    Also returns for each of them whether it is the first of its lane.
    """
    these = slice(None) if rows is None else rows
    lanes_of, durations_of = lanes[these], durations[these]
    # Outer events first: the longest, and for the same span the outer category.
    ties = (-durations_of,) if rank is None else (-durations_of, rank[these])
    order = by_group_and_time(lanes_of, starts[these], *ties)
    lane = lanes_of[order]
    new_lane = np.concatenate(([True], lane[1:] != lane[:-1]))[: len(lane)]
    return order if rows is None else rows[order], new_lane


def innermost_at(
    lanes: npt.NDArray[np.generic],
    starts: Int64Array,
    ends: Int64Array,
    moment_lanes: npt.NDArray[np.generic],
    moments: Int64Array,
) -> Int64Array:
    """Returns for each moment the row of the innermost event around it; -1 for none.

    An event is around the moments from its start until just before its end. Of events that start
    together the shorter one is the inner one, and of equal ones the later one.
    """
    number = len(starts)
    nested = nest(
        np.concatenate((lanes, moment_lanes)),
        np.concatenate((starts, moments)),
        np.concatenate((ends - starts, np.zeros(len(moments), np.int64))),
    )
    return nested.parent[number:].astype(np.int64)


def nest_by_loop(
    order: npt.NDArray[np.int32],
    new_lane: BoolArray,
    starts: Int64Array,
    durations: Int64Array,
    tolerance: int,
    chosen: BoolArray,
    stack: Written[np.int32],
    inner: Written[np.int32],
    covered_to: Written[np.int64],
    parent: Written[np.int32],
    depth: Written[np.int32],
    self_time: Written[np.int64],
    crossing: Written[np.bool_],
    around: Written[np.int32],
) -> None:
    """Fills in the columns of `Nesting` for the rows to nest, with a stack, in one pass.

    A row that ends too early for the current row is never a better parent for a later row than the
    current row is, so it leaves the stack for good, and the pass is linear for any input. What is
    left on the stack is the row's parent and all rows above that.

    `top` rises by at most 1 with each row and is -1 at the first of a lane, so it stays below the
    number of rows of the lane, for which there is room in `stack`, `inner` and `covered_to`: for
    each row of the stack, the nearest chosen one among itself and those below it on the stack, and
    how far its children cover it so far. `order` and `stack` hold rows of the table. `chosen` and
    `around` are empty, or as long as the table.
    """
    looks = len(chosen) > 0
    top = -1
    for place in range(len(order)):
        if new_lane[place]:
            top = -1
        row = order[place]
        start = starts[row]
        end = start + durations[row]
        needed = max(end - tolerance, start + 1)
        outer_end = end
        while top >= 0:
            outer_end = starts[stack[top]] + durations[stack[top]]
            if outer_end >= needed:
                break
            if outer_end > start:
                crossing[row] = True
            top -= 1
        nearest = -1
        if top >= 0:
            outer = stack[top]
            parent[row] = outer
            depth[row] = top + 1
            last = min(end, outer_end)
            fresh = last - max(start, covered_to[top])
            if fresh > 0:
                self_time[outer] -= fresh
            covered_to[top] = max(covered_to[top], last)
            nearest = inner[top]
        top += 1
        stack[top] = row
        covered_to[top] = start
        if looks:
            around[row] = nearest
            if chosen[row]:
                nearest = row
        inner[top] = nearest
