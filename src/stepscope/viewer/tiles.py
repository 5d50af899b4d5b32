"""Level of detail: what to draw of rows of slices for a range of time, at one pixel a bucket.

Definitions
    A tile is the range from `start_ns` on of `buckets` buckets, each `step_ns` = 2**level long;
    its start is a multiple of the step, so that the same bucket comes out the same in any tile.
    A slice is wide if it lasts at least a bucket, else it is narrow. The tile has an item for
    each wide slice that overlaps it, with its own start and end, cut to the tile; and one for each
    bucket that narrow slices touch, with the longest of them, how many start in the bucket, and
    the time of the bucket that they cover. A narrow slice that crosses the left edge counts in the
    first bucket.
    So nothing vanishes: every slice that overlaps the tile is one item or counts in exactly one,
    and what the items of a row cover adds up to what its slices cover of the tile.

A slice without duration overlaps a tile if it starts in it.

Rows are scanned from the first slice that ends inside the tile. Stretches of `BLOCK` slices that
lie within one bucket are taken from sums made beforehand, so that a tile of the whole trace costs a
small part of its slices.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import compiled
from stepscope.viewer.slice_rows import BLOCK, SliceRows, UInt32Array

if TYPE_CHECKING:
    from stepscope.trace.machine.calling import CompiledFunction

MOST_LEVEL = 46
MOST_BUCKETS = 1 << 14

_BLOCK_BITS = BLOCK.bit_length() - 1


@dataclass(frozen=True, eq=False)
class SliceTile:
    """What to draw of some rows.

    Attributes:
        level: Its buckets last 2**level ns.
        rows: The rows, as asked for.
        offsets: The items of `rows[i]` are those from `offsets[i]` up to `offsets[i + 1]`.
        item_start_ns: Start of each item within the tile; of narrow slices that of their bucket.
        item_end_ns: End of each item within the tile; of narrow slices that of their bucket.
        covered_ns: Time of the tile that the item's slices cover.
        count: Slices that the item stands for; 0 in a bucket into which a narrow slice only
            reaches from the one before. A wide slice counts as 1.
        event: The wide slice, or the longest of the narrow ones.
        is_wide: Whether the item is a wide slice.
    """

    start_ns: int
    level: int
    buckets: int
    rows: Int64Array
    offsets: Int64Array
    item_start_ns: Int64Array
    item_end_ns: Int64Array
    covered_ns: Int64Array
    count: UInt32Array
    event: UInt32Array
    name: UInt32Array
    colour: npt.NDArray[np.uint8]
    is_wide: npt.NDArray[np.bool_]

    @property
    def step_ns(self) -> int:
        """Length of a bucket."""
        return 1 << self.level


def slice_tile(
    rows: SliceRows,
    start_ns: int,
    level: int,
    buckets: int,
    wanted: npt.ArrayLike,
) -> SliceTile:
    """Make a tile.

    Args:
        start_ns: Where it shall start; rounded down to a multiple of the step.
        level: Its buckets last 2**level ns, 0 to `MOST_LEVEL`.
        buckets: How many, 1 to `MOST_BUCKETS`; one more where the start was rounded down.
        wanted: Numbers of the rows.

    Raises:
        ValueError: An argument is out of its range.
    """
    chosen = np.asarray(wanted, np.int64)
    if not 0 <= level <= MOST_LEVEL or not 1 <= buckets <= MOST_BUCKETS:
        raise ValueError(f"no tile of {buckets} buckets at level {level}")
    if len(chosen) and (chosen.min() < 0 or chosen.max() >= len(rows)):
        raise ValueError(f"there are rows 0 to {len(rows) - 1}")
    first = start_ns >> level << level
    number = buckets + (first != start_ns)
    end_ns = first + (number << level)
    low, high = bounds(rows, chosen, first, end_ns)
    starts, ends, covered, count, position, is_wide, found = items_by_loop(
        rows, low, high, first, level, end_ns
    )
    return SliceTile(
        start_ns=first,
        level=level,
        buckets=number,
        rows=chosen,
        offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(found))),
        item_start_ns=starts,
        item_end_ns=ends,
        covered_ns=covered,
        count=count,
        event=rows.event[position],
        name=rows.name[position],
        colour=rows.colour[position],
        is_wide=is_wide,
    )


Items = tuple[
    Int64Array, Int64Array, Int64Array,
    npt.NDArray[np.uint32], Int64Array, npt.NDArray[np.bool_], Int64Array,
]  # fmt: skip
"""Start, end, covered time, count, position and width of each item, and the items of each row."""


def items_by_loop(
    rows: SliceRows, low: Int64Array, high: Int64Array, first: int, level: int, end_ns: int
) -> Items:
    """The items of each row of a tile.

    Args:
        low: First slice of each row that overlaps the tile.
        high: One past the last of each row.
        first: Where the tile starts, a multiple of the step.
        level: The step is 2**level ns.
        end_ns: Where the last bucket ends.
    """
    # A slice has two items at most, and a bucket two; the loop looks before it writes three more.
    number = (end_ns - first) >> level
    bounds = np.minimum(2 * (high - low), 2 * number + 1) + 3
    at = np.concatenate((np.zeros(1, np.int64), np.cumsum(bounds)))
    total = int(at[-1])
    starts, ends, covered = (np.empty(total, np.int64) for _ in range(3))
    count, place = np.empty(total, np.uint32), np.empty(total, np.int64)
    is_wide = np.empty(total, np.bool_)
    found = np.zeros(len(low), np.int64)
    _compiled()(
        rows.start_ns,
        rows.end_ns,
        rows.block_longest,
        rows.block_covered_ns,
        low,
        high,
        at,
        first,
        level,
        end_ns,
        starts,
        ends,
        covered,
        count,
        place,
        is_wide,
        found,
    )
    filled = np.repeat(at[:-1], found) + _within(found)
    return (
        starts[filled], ends[filled], covered[filled], count[filled], place[filled],
        is_wide[filled], found,
    )  # fmt: skip


def _within(counts: Int64Array) -> Int64Array:
    """0, 1, … for each group of that many."""
    total = int(counts.sum())
    return np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)


def bounds(
    rows: SliceRows, chosen: Int64Array, start_ns: int, end_ns: int
) -> tuple[Int64Array, Int64Array]:
    """For each row the positions of the slices that overlap [start_ns, end_ns): from, up to."""
    low = np.empty(len(chosen), np.int64)
    high = np.empty(len(chosen), np.int64)
    for at, row in enumerate(chosen.tolist()):
        a, b = int(rows.offsets[row]), int(rows.offsets[row + 1])
        starts = rows.start_ns[a:b]
        ended = int(np.searchsorted(rows.end_ns[a:b], start_ns, side="right"))
        # A slice without duration that starts at the edge has ended there, and is inside.
        low[at] = a + min(ended, int(np.searchsorted(starts, start_ns)))
        high[at] = max(low[at], a + int(np.searchsorted(starts, end_ns)))
    return low, high


def fill_by_loop(
    start: Int64Array,
    end: Int64Array,
    block_longest: Int64Array,
    block_covered: Int64Array,
    low: Int64Array,
    high: Int64Array,
    bounds: Int64Array,
    tile_start: int,
    level: int,
    tile_end: int,
    item_start: Written[np.int64],
    item_end: Written[np.int64],
    item_covered: Written[np.int64],
    item_count: Written[np.uint32],
    item_place: Written[np.int64],
    item_wide: Written[np.bool_],
    found: Written[np.int64],
) -> None:
    """Fill in the items of each row.

    `at` is a slice of the row, and of a block only if all of the block is in the row. An iteration
    writes at most two items, what follows the last one more, and `write` leaves space for three.

    Args:
        start: Start of every slice.
        end: End of every slice.
        block_longest: Position of the longest slice of each block.
        block_covered: Sum of the durations of each block.
        low: First slice of each row that overlaps the tile.
        high: One past the last of each row.
        bounds: Where the items of each row begin in `out`, and where the last ones end. Slices out
            of order, as in a damaged file, could have more than fit: the rest is left out.
        tile_start: A multiple of the step.
        level: Of the step.
        tile_end: Where the last bucket ends.
        item_start: Start of each item; to be filled in, as all that follow.
        item_covered: Time that it covers.
        item_count: Slices that it stands for.
        item_place: The longest of them.
        item_wide: Whether it is a wide slice.
    """
    step = np.int64(1) << level
    for row in range(len(low)):
        write = bounds[row]
        bucket = np.int64(-1)  # the bucket whose narrow slices are being added up; -1: none
        covered = np.int64(0)
        count = np.int64(0)
        longest = np.int64(-1)
        at = low[row]
        while at < high[row] and write + 3 <= bounds[row + 1]:
            first = max(start[at], tile_start)
            lasting = end[at] - start[at]
            if lasting >= step:
                if bucket >= 0:
                    item_start[write] = tile_start + (bucket << level)
                    item_end[write] = item_start[write] + step
                    item_covered[write], item_count[write] = covered, count
                    item_place[write], item_wide[write] = longest, False
                    write += 1
                    bucket = np.int64(-1)
                last = min(end[at], tile_end)
                item_start[write], item_end[write] = first, last
                item_covered[write], item_count[write] = last - first, 1
                item_place[write], item_wide[write] = at, True
                write += 1
                at += 1
                continue
            mine = (first - tile_start) >> level
            if mine != bucket:
                if bucket >= 0:
                    item_start[write] = tile_start + (bucket << level)
                    item_end[write] = item_start[write] + step
                    item_covered[write], item_count[write] = covered, count
                    item_place[write], item_wide[write] = longest, False
                    write += 1
                bucket = mine
                covered = np.int64(0)
                count = np.int64(0)
                longest = at
            bucket_end = tile_start + ((bucket + 1) << level)
            # A whole block inside this bucket?
            if (
                at & (BLOCK - 1) == 0
                and at + BLOCK <= high[row]
                and start[at] >= tile_start
                and end[at + BLOCK - 1] <= bucket_end
            ):
                best = block_longest[at >> _BLOCK_BITS]
                if end[best] - start[best] < step:
                    if end[best] - start[best] > end[longest] - start[longest]:
                        longest = best
                    covered += block_covered[at >> _BLOCK_BITS]
                    count += BLOCK
                    at += BLOCK
                    continue
            if lasting > end[longest] - start[longest]:
                longest = at
            count += 1
            last = min(end[at], tile_end)
            covered += min(last, bucket_end) - first
            if last > bucket_end:  # the rest belongs to the next bucket
                item_start[write] = bucket_end - step
                item_end[write] = bucket_end
                item_covered[write], item_count[write] = covered, count
                item_place[write], item_wide[write] = longest, False
                write += 1
                bucket += 1
                covered = last - bucket_end
                count = np.int64(0)
                longest = at
            at += 1
        if bucket >= 0:
            item_start[write] = tile_start + (bucket << level)
            item_end[write] = item_start[write] + step
            item_covered[write], item_count[write] = covered, count
            item_place[write], item_wide[write] = longest, False
            write += 1
        found[row] = write - bounds[row]


@functools.cache
def _compiled() -> CompiledFunction:
    return compiled(fill_by_loop)


def warm_up() -> None:
    """Load the compiled loop, so that the first tile does not wait for it."""
    _compiled().load()
