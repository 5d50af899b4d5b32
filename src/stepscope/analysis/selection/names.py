"""What names stand for: conditions on rows of `names`, and what all of them together tell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

_SORTING_TAKES = 8  # times as long as going through as many events
_FEW_NAMES = 2**16

CALLS = (Category.RUNTIME.value, Category.DRIVER.value)


def is_call() -> pl.Expr:
    """Calls of a device's runtime or driver, on the host; of events as well as of names."""
    return pl.col("category").is_in(CALLS)


def is_operator() -> pl.Expr:
    """Operators, but for those that mark steps."""
    return (pl.col("category") == Category.CPU_OP.value) & ~is_step()


def is_step() -> pl.Expr:
    """What marks a step, whether as an annotation or as an operator."""
    return (pl.col("group") == "profiler_step").fill_null(value=False)


def events_named(
    trace: Trace,
    condition: pl.Expr,
    lanes: Iterable[int] | None = None,
    within: tuple[int, int] | None = None,
) -> Int64Array:
    """The numbers of the events whose names meet a condition, in order.

    The columns that this looks at stay in memory, unlike those of a filter on `Trace.events`.

    Args:
        condition: Of rows of `names`.
        within: Only events that begin at the first moment or later, and before the second.
    """
    return events_with_names(trace, names_that(trace, condition), lanes, within)


def events_with_names(
    trace: Trace,
    is_named: BoolArray,
    lanes: Iterable[int] | None = None,
    within: tuple[int, int] | None = None,
) -> Int64Array:
    """The same where it is known for each row of `names` whether it is wanted."""
    if not is_named.any():
        return np.zeros(0, np.int64)
    order, first = _events_by_name(trace)
    if int(np.diff(first)[is_named].sum()) * _SORTING_TAKES > len(order):
        events = np.flatnonzero(is_named[trace.columns("name_id")["name_id"].to_numpy()])
    else:
        parts = [order[first[name] : first[name + 1]] for name in np.flatnonzero(is_named)]
        events = np.concatenate(parts).astype(np.int64)
        events.sort(kind="stable")
    if lanes is not None:
        is_there = np.zeros(trace.lanes.height, np.bool_)
        is_there[list(lanes)] = True
        events = events[is_there[trace.columns("lane_id")["lane_id"].to_numpy()[events]]]
    if within is not None:
        begun = trace.columns("start_ns")["start_ns"].to_numpy()[events]
        events = events[(begun >= within[0]) & (begun < within[1])]
    return events


def times_of(trace: Trace, events: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Start and end of some events, by their numbers."""
    columns = trace.columns("start_ns", "dur_ns")
    starts = columns["start_ns"].to_numpy()[events]
    return starts, starts + columns["dur_ns"].to_numpy()[events]


@memoized
def _events_by_name(trace: Trace) -> tuple[npt.NDArray[np.int32], Int64Array]:
    """The events in order of their names, and where those of each name begin; then how many.

    Many questions look for the events of few names.
    """
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    names = len(trace.name_rows)
    first = np.zeros(names + 1, np.int64)
    np.cumsum(np.bincount(name_id, minlength=names), out=first[1:])
    # numpy sorts 16-bit numbers by counting.
    narrow = name_id.astype(np.uint16) if names <= _FEW_NAMES else name_id
    return np.argsort(narrow, kind="stable").astype(np.int32), first


def names_that(trace: Trace, condition: pl.Expr) -> BoolArray:
    """For each row of `names` whether it meets a condition; not where the condition is null."""
    matches = trace.name_rows.select(condition.alias("matches"))["matches"]
    found: BoolArray = (
        matches.fill_null(value=False) if matches.null_count() else matches
    ).to_numpy()
    return found


def by_distinct_name(rows: pl.DataFrame, expression: pl.Expr) -> pl.Series:
    """The value of an expression of `name` for each row, computed once for each distinct name.

    Args:
        rows: Rows with `name_id` and `name`. Few names repeat in very many rows, and a pattern
            takes longer to look for in a text than a number to look up.
    """
    ids = rows["name_id"]
    if ids.is_empty():
        return rows.select(value=expression)["value"]
    row = ids.to_numpy()
    one = np.full(int(row.max()) + 1, -1, np.int64)
    one[row] = np.arange(len(row))  # any row of each name
    known = np.flatnonzero(one >= 0)
    names = rows[["name"]][one[known]].select(value=expression)
    place = np.zeros(len(one), np.uint32)
    place[known] = np.arange(len(known))
    found: pl.Series = names["value"][place[row]]
    return found
