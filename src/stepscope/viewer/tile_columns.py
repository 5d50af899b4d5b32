"""The items of a tile without compiled code, for the first picture.

Loading the compiled loop of `tiles.py` takes longer than a tile of some hundred thousand slices
takes on columns. The items are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.viewer.slice_rows import SliceRows

MOST_SLICES = 500_000
"""Above this the loop is faster, even if it must be loaded first."""

Items = tuple[
    Int64Array, Int64Array, Int64Array,
    npt.NDArray[np.uint32], Int64Array, npt.NDArray[np.bool_], Int64Array,
]  # fmt: skip
"""Start, end, covered time, count, position and width of each item, and the items of each row."""


def items_by_columns(
    rows: SliceRows, low: Int64Array, high: Int64Array, tile_start: int, level: int, tile_end: int
) -> Items:
    """The items of each row of a tile.

    Args:
        low: First slice of each row that overlaps the tile.
        high: One past the last of each row.
        tile_start: A multiple of the step.
        level: The step is 2**level ns.
        tile_end: Where the last bucket ends.
    """
    step = 1 << level
    number = high - low
    row = np.repeat(np.arange(len(low)), number)
    at = np.arange(len(row)) + np.repeat(low - (np.cumsum(number) - number), number)
    first = np.maximum(rows.start_ns[at], tile_start)
    last = np.minimum(rows.end_ns[at], tile_end)
    lasting = rows.end_ns[at] - rows.start_ns[at]
    is_wide = lasting >= step
    bucket = (first - tile_start) >> level
    bucket_end = tile_start + ((bucket + 1) << level)
    # What a narrow slice covers of the next bucket is a part of its own there.
    reaches = ~is_wide & (last > bucket_end)
    own = np.where(is_wide, last - first, np.minimum(last, bucket_end) - first)
    of = np.repeat(np.arange(len(row)), 1 + reaches)
    is_rest = np.zeros(len(of), np.bool_)
    is_rest[1:] = of[1:] == of[:-1]
    part_bucket = bucket[of] + is_rest
    covered = np.where(is_rest, (last - bucket_end)[of], own[of])
    wide, part_row = is_wide[of], row[of]
    begins = np.ones(len(of), np.bool_)
    begins[1:] = (
        wide[1:]
        | wide[:-1]
        | (part_bucket[1:] != part_bucket[:-1])
        | (part_row[1:] != part_row[:-1])
    )
    heads = np.flatnonzero(begins)
    if not len(heads):
        none = np.zeros(0, np.int64)
        found = np.zeros(len(low), np.int64)
        return none, none, none, none.astype(np.uint32), none, none.astype(np.bool_), found
    item_wide = wide[heads]
    bucket_start = tile_start + (part_bucket[heads] << level)
    return (
        np.where(item_wide, first[of][heads], bucket_start),
        np.where(item_wide, last[of][heads], bucket_start + step),
        np.add.reduceat(covered, heads),
        np.add.reduceat(~is_rest, heads, dtype=np.int64).astype(np.uint32),
        at[of][_first_longest(lasting[of], heads)],
        item_wide,
        np.bincount(part_row[heads], minlength=len(low)),
    )


def _first_longest(lasting: npt.NDArray[Any], heads: Int64Array) -> Int64Array:
    """Of each group that begins at a head the place of the longest, the first of equal ones."""
    longest = np.maximum.reduceat(lasting, heads)
    group = np.repeat(np.arange(len(heads)), np.diff(np.append(heads, len(lasting))))
    candidates = np.flatnonzero(lasting == longest[group])
    _, first = np.unique(group[candidates], return_index=True)
    return candidates[first]
