"""Puts the slices of every lane into rows, so that no two slices of a row overlap.

Definitions
    A lane is divided into bands that are drawn below each other: on a GPU stream annotations, then
    GPU work, then synchronisation records; a CPU thread has one band.
    Within a band a slice goes into the first row below every open slice that contains it, and
    which is free at its start. Where all slices nest, the row is the depth in the call tree.
    Slices that overlap without nesting (streams that run several kernels at once, merged files)
    move to rows of their own, so that none hides another.

Files with a coarse clock show neighbours that overlap by its resolution. Such neighbours share a
row, and the first is drawn up to the start of the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.ordering import by_group, by_group_and_time
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit

MOST_ROWS = 1024
"""Rows of one band. Slices that would need more are counted, not drawn."""


@dataclass(frozen=True, eq=False)
class Placement:
    """Where each slice goes, in the order of `rows`.

    Attributes:
        order: Slices by row, then start: positions in the arrays given to `place`.
        end_ns: Where each slice of `order` ends on the screen.
        offsets: Row r holds `order[offsets[r]:offsets[r + 1]]`; rows are sorted by band.
    """

    order: npt.NDArray[np.int64]
    end_ns: Int64Array
    band: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    left_out: int


def place(
    band: npt.NDArray[np.integer[Any]],
    start_ns: Int64Array,
    dur_ns: Int64Array,
    rank: npt.NDArray[np.generic] | None = None,
    tolerance_ns: int = 0,
) -> Placement:
    """Put slices into rows.

    Args:
        rank: Order among slices with the same span, outer ones first; default: the order given.
        tolerance_ns: By how much neighbours of one row may overlap.
    """
    ties = (-dur_ns,) if rank is None else (-dur_ns, rank)
    order = by_group_and_time(band, start_ns, *ties)
    sorted_band = band[order].astype(np.int64)
    start = start_ns[order]
    end = start + dur_ns[order]
    drawn = end.copy()
    row = np.empty(len(order), np.int32)
    row_end, last = np.empty(MOST_ROWS, np.int64), np.empty(MOST_ROWS, np.int64)
    jit(place_by_loop)(sorted_band, start, end, tolerance_ns, row_end, last, row, drawn)
    kept = row >= 0
    left_out = int(len(row) - np.count_nonzero(kept))
    if left_out:
        order, sorted_band = order[kept], sorted_band[kept]
        drawn, row = drawn[kept], row[kept]
    return _by_row(order, sorted_band, drawn, row, left_out)


def _by_row(
    order: Int64Array,
    band: Int64Array,
    drawn: Int64Array,
    row: npt.NDArray[np.int32],
    left_out: int,
) -> Placement:
    """Sort what is sorted by band and time by band and row, keeping the order of time."""
    bands, first = np.unique(band, return_index=True)
    depth = np.maximum.reduceat(row, first).astype(np.int64) + 1 if len(bands) else bands
    base = np.concatenate((np.zeros(1, np.int64), np.cumsum(depth)))
    number = np.repeat(base[:-1], np.diff(np.append(first, len(band)))) + row
    counts = np.bincount(number, minlength=int(base[-1]))
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(counts)))
    by_row = by_group(number)
    return Placement(order[by_row], drawn[by_row], np.repeat(bands, depth), offsets, left_out)


def place_by_loop(
    band: Int64Array,
    start: Int64Array,
    end: Int64Array,
    tolerance: int,
    row_end: Written[np.int64],
    last: Written[np.int64],
    row: Written[np.int32],
    drawn: Written[np.int64],
) -> None:
    """Fill in the row of each slice (-1: beyond the last), and where it ends on the screen.

    `top` and `used` are numbers of rows that hold slices, which are fewer than the arrays are long.

    Args:
        band: Sorted.
        start: Sorted within a band; of equal ones the outer first.
        end: Not before its start.
        tolerance: By how much neighbours of one row may overlap.
        row_end: As long as a band may have rows: where the last slice of each ends.
        last: As long: the last slice of each row.
        row: Row of each slice, to be filled in.
        drawn: A copy of `end`, cut where a neighbour starts a little earlier.
    """
    top = -1  # the last row with a slice that is still open
    used = 0  # rows of this band that have ever held a slice
    for at in range(len(band)):
        if at == 0 or band[at] != band[at - 1]:
            top = -1
            used = 0
        first = start[at]
        while top >= 0 and row_end[top] <= first:
            top -= 1
        below = top
        while below >= 0 and not (row_end[below] > first and row_end[below] + tolerance >= end[at]):
            below -= 1
        chosen = below + 1
        while chosen < used and row_end[chosen] > first + tolerance:
            chosen += 1
        if chosen >= len(row_end):
            row[at] = -1
            continue
        if chosen < used and drawn[last[chosen]] > first:
            drawn[last[chosen]] = first
        row[at] = chosen
        row_end[chosen] = end[at]
        last[chosen] = at
        used = max(used, chosen + 1)
        top = max(top, chosen)
