"""Sets of intervals: union, intersection, difference, clipping and coverage.

Intervals are half-open, [start, end): they contain their start but not their end, so intervals that
touch do not overlap and their lengths add up. An interval whose end is not after its start is
empty: it contributes nothing to a set and has coverage 0. All times are int64 nanoseconds within
±2**62, so that no difference overflows.

`Intervals` is a set in normal form (sorted, disjoint, not touching), so equal sets have equal
arrays. All functions are vectorised; sorting is the most expensive operation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Intervals:
    """A set of intervals in normal form: `starts[i] < ends[i] < starts[i + 1]` for every i.

    Build it with `merge`; the constructor does not check its arguments.
    """

    starts: Int64Array
    ends: Int64Array

    def __len__(self) -> int:
        return len(self.starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    __hash__ = None  # type: ignore[assignment]

    @property
    def lengths(self) -> Int64Array:
        """Length of each interval, in ns."""
        return self.ends - self.starts

    @property
    def total_ns(self) -> int:
        """Total length, in ns."""
        return int(self.lengths.sum())


def int64_times(values: npt.ArrayLike) -> Int64Array:
    """Whole numbers such as times, in 64 bits.

    Raises:
        TypeError: They are not whole numbers.
    """
    array = np.asarray(values)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"times are integers in nanoseconds, not {array.dtype}")
    return array.astype(np.int64, copy=False)


def empty() -> Intervals:
    """Returns the empty set."""
    return Intervals(np.zeros(0, np.int64), np.zeros(0, np.int64))


def merge(starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
    """Returns the union of intervals in any order. They may overlap; those that touch are joined.

    Raises:
        ValueError: The arrays differ in length.
        TypeError: The times are not integers.
    """
    first, last = int64_times(starts), int64_times(ends)
    if len(first) != len(last):
        raise ValueError(f"{len(first)} starts and {len(last)} ends")
    filled = last > first
    if not filled.all():
        first, last = first[filled], last[filled]
    if len(first) == 0:
        return empty()
    if (first[1:] < first[:-1]).any():
        order = np.argsort(first, kind="stable")
        first, last = first[order], last[order]
    reach = np.maximum.accumulate(last)
    opens = np.concatenate(([True], first[1:] > reach[:-1]))
    closes = np.concatenate((opens[1:], [True]))
    return Intervals(first[opens], reach[closes])


def union(first: Intervals, second: Intervals) -> Intervals:
    """Returns the time in either set."""
    if not len(first) or not len(second):
        return first if len(first) else second
    starts = np.concatenate((first.starts, second.starts))
    return merge(starts, np.concatenate((first.ends, second.ends)))


def intersection(first: Intervals, second: Intervals) -> Intervals:
    """Returns the time in both sets."""
    _, _, starts, ends = clip_by_windows(second, first.starts, first.ends)
    return Intervals(starts, ends)


def difference(first: Intervals, second: Intervals) -> Intervals:
    """Returns the time in the first set but not in the second."""
    if not len(first) or not len(second):
        return first
    return intersection(first, complement(second, int(first.starts[0]), int(first.ends[-1])))


def clip(intervals: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Returns the part of a set within the window [start_ns, end_ns)."""
    if end_ns <= start_ns or len(intervals) == 0:
        return empty()
    low = int(np.searchsorted(intervals.ends, start_ns, side="right"))
    high = int(np.searchsorted(intervals.starts, end_ns, side="left"))
    return Intervals(
        np.maximum(intervals.starts[low:high], start_ns),
        np.minimum(intervals.ends[low:high], end_ns),
    )


def complement(intervals: Intervals, start_ns: int, end_ns: int) -> Intervals:
    """Returns the part of the window [start_ns, end_ns) that is not in a set."""
    if end_ns <= start_ns:
        return empty()
    inside = clip(intervals, start_ns, end_ns)
    starts = np.concatenate((np.array([start_ns], np.int64), inside.ends))
    ends = np.concatenate((inside.starts, np.array([end_ns], np.int64)))
    filled = ends > starts  # all, unless the set reaches an end of the window
    return Intervals(starts[filled], ends[filled])


def contains(intervals: Intervals, times: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """For each time, whether it is in the set."""
    moments = int64_times(times)
    if len(intervals) == 0:
        return np.zeros(len(moments), np.bool_)
    index = np.searchsorted(intervals.starts, moments, "right") - 1
    inside: npt.NDArray[np.bool_] = (index >= 0) & (moments < intervals.ends[index])
    return inside


def covered_before(intervals: Intervals, times: npt.ArrayLike) -> Int64Array:
    """For each time t, the length of the part of the set before t, in ns."""
    moments = int64_times(times)
    if len(intervals) == 0:
        return np.zeros(len(moments), np.int64)
    lengths = np.concatenate((np.zeros(1, np.int64), np.cumsum(intervals.lengths)))
    started = np.searchsorted(intervals.starts, moments, "right")
    # The last interval that started may extend beyond t: subtract the part after t.
    running = np.maximum(started - 1, 0)
    beyond = np.maximum(intervals.ends[running] - moments, 0)
    before: Int64Array = lengths[started] - np.where(started > 0, beyond, 0)
    return before


def covered(intervals: Intervals, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Int64Array:
    """For each window [starts[i], ends[i]), the length that the set covers, in ns.

    Windows can be steps or single events. They may overlap and be in any order. O(log n) each.
    """
    first, last = int64_times(starts), int64_times(ends)
    return covered_before(intervals, np.maximum(first, last)) - covered_before(intervals, first)


def clip_by_windows(
    intervals: Intervals, starts: npt.ArrayLike, ends: npt.ArrayLike
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Returns the parts of a set within each of many windows [starts[i], ends[i]).

    Returns:
        Numbers of window and interval, start and end of each part, sorted by window, then start.
    """
    first, last = int64_times(starts), int64_times(ends)
    low = np.searchsorted(intervals.ends, first, "right")
    high = np.maximum(np.searchsorted(intervals.starts, last), low)
    high = np.where(last > first, high, low)
    count = high - low
    window = np.repeat(np.arange(len(first), dtype=np.int64), count)
    # There may be many parts, so that every column of them counts: numbered on from `low`.
    index = np.repeat(low - (np.cumsum(count) - count), count)
    index += np.arange(len(index), dtype=np.int64)
    begin = intervals.starts[index]
    end = intervals.ends[index]
    np.maximum(begin, first[window], out=begin)
    np.minimum(end, last[window], out=end)
    return window, index, begin, end
