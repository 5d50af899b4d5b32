"""Unions of intervals within groups, for all groups at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array, int64_times
from stepscope.trace.arrays.ordering import by_group, by_group_and_time

_WIDEST = 2**62
"""A run and a value are put together in one number below this."""


def merge_by_group(
    groups: npt.ArrayLike, starts: npt.ArrayLike, ends: npt.ArrayLike
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Returns the union within each group (device, stream, parent, …), for all groups at once.

    Returns:
        Group, start and end of each merged interval, sorted by group, then start.
    """
    group, first, last = int64_times(groups), int64_times(starts), int64_times(ends)
    if not len(group) == len(first) == len(last):
        raise ValueError(f"{len(group)} groups, {len(first)} starts and {len(last)} ends")
    filled = last > first
    group, first, last = group[filled], first[filled], last[filled]
    if len(group) == 0:
        return group, first, last
    # Events mostly come in the order of their starts.
    is_in_order = bool((first[1:] >= first[:-1]).all())
    order = by_group(group) if is_in_order else by_group_and_time(group, first)
    group, first, last = group[order], first[order], last[order]
    new_group = np.concatenate(([True], group[1:] != group[:-1]))
    reach = _running_maximum_by_run(last, new_group)
    opens = new_group.copy()
    opens[1:] |= first[1:] > reach[:-1]
    closes = np.concatenate((opens[1:], [True]))
    return group[opens], first[opens], reach[closes]


def _running_maximum_by_run(values: Int64Array, new_run: npt.NDArray[np.bool_]) -> Int64Array:
    """Returns a running maximum that restarts wherever `new_run` is true."""
    runs = int(new_run.sum())
    if runs == 1:
        return np.maximum.accumulate(values)
    least = int(values.min())
    span = int(values.max()) - least + 1
    if runs * span < _WIDEST:
        base = (np.cumsum(new_run) - 1) * np.int64(span)
        reached: Int64Array = np.maximum.accumulate(base + (values - least))
        return reached - base + least
    # Ranks instead of values, because run * n + rank cannot overflow.
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    base = (np.cumsum(new_run) - 1) * len(values)
    highest = np.maximum.accumulate(base + rank) - base
    running: Int64Array = values[order[highest]]
    return running


def union_lengths(
    groups: Int64Array, starts: Int64Array, ends: Int64Array, size: int
) -> Int64Array:
    """Returns the length of the union within each group, in ns.

    Args:
        ends: Intervals that end before they begin count for nothing.
    """
    length = np.zeros(size, np.int64)
    group, first, last = merge_by_group(groups, starts, ends)
    np.add.at(length, group, last - first)
    return length
