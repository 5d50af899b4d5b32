"""Sorts rows by group and time, the first step of nearly every analysis of lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.blockwise import gather
from stepscope.trace.arrays.intervals import Int64Array

_WIDEST = 2**62
_MOST_COUNTED = 2**16
_AT_ONCE = 2**16
"""Rows whose copies stay in the processor's cache."""


def by_group_and_time(
    groups: npt.NDArray[np.generic] | None,
    times: Int64Array,
    *ties: npt.NDArray[np.generic],
) -> Int64Array:
    """Returns row numbers sorted by group, time, each of `ties` in turn, then the given order.

    Combining group and time into one number sorts several times faster than sorting by columns. The
    ties are needed only for the few rows that share both.

    Args:
        groups: Integers such as lanes; None if all rows are one group.
        ties: Further sort keys, most important first.
    """
    place = times
    if groups is not None and len(times):
        group = groups.astype(np.int64)
        group -= group.min()
        earliest = int(times.min())
        span = int(times.max()) - earliest + 1
        if (int(group.max()) + 1) * span >= _WIDEST:
            return np.lexsort((*ties[::-1], times, groups))
        # In place: each further array of this length has to be got from the system first.
        group *= np.int64(span)
        group += times
        group -= earliest
        place = group
    order = np.argsort(place, kind="stable")
    if not ties or not len(order):
        return order
    place = gather(place, order)
    same = place[1:] == place[:-1]
    together = np.nonzero(np.append(same, False) | np.append(False, same))[0]
    if len(together):
        rows = order[together]
        keys = [key[rows] for key in reversed(ties)]
        order[together] = rows[np.lexsort((*keys, place[together]))]
    return order


def by_group(groups: npt.NDArray[np.integer[Any]]) -> Int64Array:
    """Returns row numbers by group, those of one group in the order given.

    Args:
        groups: Integers such as lanes; few that are close to each other are sorted fastest.
    """
    if not len(groups):
        return np.zeros(0, np.int64)
    least, most = int(groups.min()), int(groups.max())
    if most == least:
        return np.arange(len(groups))
    # numpy sorts 16-bit numbers by counting.
    is_narrow = most - least < _MOST_COUNTED
    return np.argsort((groups - least).astype(np.uint16) if is_narrow else groups, kind="stable")


def distinct_groups(groups: npt.NDArray[np.integer[Any]]) -> list[int]:
    """Returns the groups that occur, in order. Meant for small integers such as lanes."""
    if not len(groups):
        return []
    least, most = int(groups.min()), int(groups.max())
    if least == most:
        return [least]
    occurs = np.zeros(most - least + 1, np.bool_)
    for first in range(0, len(groups), _AT_ONCE):
        occurs[groups[first : first + _AT_ONCE].astype(np.int64) - least] = True
    found: list[int] = (np.flatnonzero(occurs) + least).tolist()
    return found


def numbered(values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns the distinct values in order, and for each value its place among them."""
    least = int(values.min(initial=0))
    if int(values.max(initial=0)) - least > 4 * len(values):
        distinct, place = np.unique(values, return_inverse=True)
        return distinct, place.reshape(-1).astype(np.int64, copy=False)
    # Values that are close to each other need not be sorted.
    occurs = np.bincount(values - least) > 0
    return np.flatnonzero(occurs) + least, (np.cumsum(occurs) - 1)[values - least]
