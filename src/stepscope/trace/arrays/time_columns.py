"""A history of memory in as many columns as a picture shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.trace.arrays.intervals import Int64Array


@dataclass(frozen=True, eq=False)
class TimeColumns:
    """Part of a history in columns.

    Attributes:
        start: Where the first column begins, on the axis.
        step: How wide a column is.
        rows: The row of the history that each column shows.
        with_events: The columns in which something happened.
    """

    start: int
    step: int
    rows: Int64Array
    reserved_bytes: Int64Array
    with_events: Int64Array


def time_columns(
    at: Int64Array, held: Int64Array, reserved: Int64Array, start: int, end: int, number: int
) -> TimeColumns:
    """Divides part of a history.

    Args:
        at: Where each row lies on the axis, ascending; at least one.
        held: What the program held from each row to the next.
        reserved: What was reserved then.
        start: The beginning of the part, on the axis.
        number: How many columns, at most.
    """
    start = min(max(start, int(at[0])), int(at[-1]))
    end = min(max(end, start + 1), int(at[-1]) + 1)
    step = -(-(end - start) // number)
    edges = start + step * np.arange(-(-(end - start) // step) + 1, dtype=np.int64)
    low = np.searchsorted(at, edges[:-1], side="left")
    high = np.searchsorted(at, edges[1:], side="left")
    rows = np.maximum(low - 1, 0)
    most = reserved[rows].copy()
    has_events = np.flatnonzero(high > low)
    if len(has_events):
        begins, until = low[has_events], int(high[has_events[-1]])
        rows[has_events] = _first_most(held, begins, until)
        most[has_events] = np.maximum.reduceat(reserved[:until], begins)
    return TimeColumns(start, step, rows, most, has_events)


def _first_most(values: Int64Array, begins: Int64Array, until: int) -> Int64Array:
    """The first row with the most, of the rows from each beginning to the next, and to the end."""
    base = int(begins[0])
    part = values[base:until]
    most = np.maximum.reduceat(part, begins - base)
    lengths = np.diff(begins, append=until)
    hits = np.flatnonzero(part == np.repeat(most, lengths))
    group = np.searchsorted(begins - base, hits, side="right")
    rows: Int64Array = base + hits[np.diff(group, prepend=0) != 0]
    return rows
