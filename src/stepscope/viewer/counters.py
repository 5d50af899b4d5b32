"""Level of detail for counters: minimum, maximum and last value of each bucket.

Definitions
    A tile has an item for each bucket in which the series changes, with the least and the greatest
    value that it takes in the bucket, including the one that holds at the bucket's start, and the
    value at its end. A bucket without an item holds the last value of the one before; the first,
    `before`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analysis.counters import Float64Array, Series


@dataclass(frozen=True, eq=False)
class CounterTile:
    """The part of a series to draw.

    Attributes:
        level: Its buckets last 2**level ns.
        before: The value that holds at the start; NaN before the first sample.
        bucket: Buckets in which the value changes, in order.
        last: The value at its end.
    """

    start_ns: int
    level: int
    buckets: int
    before: float
    bucket: npt.NDArray[np.uint32]
    least: Float64Array
    greatest: Float64Array
    last: Float64Array


def counter_tile(series: Series, start_ns: int, level: int, buckets: int) -> CounterTile:
    """Make a tile of a series.

    Args:
        start_ns: Its start; rounded down to a multiple of the step.
        level: Its buckets last 2**level ns.
        buckets: How many; one more where the start was rounded down.
    """
    first = start_ns >> level << level
    number = buckets + (first != start_ns)
    low, high = np.searchsorted(series.time_ns, [first, first + (number << level)])
    before = float(series.value[low - 1]) if low else float("nan")
    place = (series.time_ns[low:high] - first) >> level
    value = series.value[low:high]
    if not len(place):
        none = np.zeros(0, np.float64)
        return CounterTile(first, level, number, before, none.astype(np.uint32), none, none, none)
    begins = np.flatnonzero(np.append(True, place[1:] != place[:-1]))
    last = value[np.append(begins[1:], len(value)) - 1]
    # What holds at a bucket's start counts, unless the bucket begins with a change.
    held = np.append(before, last[:-1])
    is_sharp = series.time_ns[low:high][begins] == first + (place[begins] << level)
    held = np.where(is_sharp, value[begins], held)
    return CounterTile(
        first,
        level,
        number,
        before,
        place[begins].astype(np.uint32),
        np.fmin(np.minimum.reduceat(value, begins), held),
        np.fmax(np.maximum.reduceat(value, begins), held),
        last,
    )
