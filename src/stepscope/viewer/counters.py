"""Level of detail for counters: the least, the greatest and the last value of each bucket.

Definitions
    A series is a step function: a value holds from its time up to the next one. A tile has an item
    for each bucket in which the series changes, with the least and the greatest value that it takes
    in the bucket, the one that holds at the bucket's start included, and the value at its end. A
    bucket without an item holds the last value of the one before; the first, `before`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Series:
    """One counter.

    Attributes:
        name: What is counted, for people.
        group: Counters of a group are drawn below each other: "memory", "queue", "metrics", ….
        unit: "bytes", "count", "share", "watts", ….
        time_ns: When the value changes, in order, each moment once.
        value: The value from then on.
    """

    name: str
    group: str
    unit: str
    time_ns: Int64Array
    value: Float64Array

    def __post_init__(self) -> None:
        if len(self.time_ns) != len(self.value):
            raise ValueError(f"'{self.name}' has as many times as values")
        if (np.diff(self.time_ns) <= 0).any():
            raise ValueError(f"the times of '{self.name}' are out of order")

    @property
    def highest(self) -> float:
        """The greatest value; 0 where there is none."""
        return float(self.value.max(initial=0.0))


def series_of(
    name: str, group: str, unit: str, time_ns: Int64Array, value: npt.NDArray[np.generic]
) -> Series:
    """A series from samples in any order; of several at one moment the last one given holds."""
    order = np.argsort(time_ns, kind="stable")
    times = time_ns[order]
    last = np.append(times[1:] != times[:-1], True)[: len(times)]
    return Series(name, group, unit, times[last], value[order][last].astype(np.float64))


@dataclass(frozen=True, eq=False)
class CounterTile:
    """What to draw of one series.

    Attributes:
        start_ns: Where the tile starts.
        level: Its buckets last 2**level ns.
        buckets: How many there are.
        before: The value that holds at the start; NaN before the first sample.
        bucket: Buckets in which the value changes, in order.
        least: The least value in each.
        greatest: The greatest.
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
        series: The series.
        start_ns: Where it shall start; rounded down to a multiple of the step.
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
