"""Orders of rows by group and time: what nearly everything that is asked of lanes begins with."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array

_WIDEST = 2**62


def by_group_and_time(
    groups: npt.NDArray[np.generic] | None,
    times: Int64Array,
    *ties: npt.NDArray[np.generic],
) -> Int64Array:
    """Rows sorted by group, then time, then each of `ties` in turn, then the order given.

    One number for group and time sorts several times faster than the columns one by one, and only
    the few rows that have both in common need more to be sorted by.

    Args:
        groups: Integers such as lanes; None: all rows are one group.
        times: In ns.
        ties: What decides between rows of one group and time, the most important first.
    """
    place = times
    if groups is not None and len(times):
        group = groups.astype(np.int64)
        group -= group.min()
        earliest = int(times.min())
        span = int(times.max()) - earliest + 1
        if (int(group.max()) + 1) * span >= _WIDEST:
            return np.lexsort((*ties[::-1], times, groups))
        place = group * np.int64(span) + (times - earliest)
    order = np.argsort(place, kind="stable")
    if not ties or not len(order):
        return order
    place = place[order]
    same = place[1:] == place[:-1]
    together = np.nonzero(np.append(same, False) | np.append(False, same))[0]
    if len(together):
        rows = order[together]
        keys = [key[rows] for key in reversed(ties)]
        order[together] = rows[np.lexsort((*keys, place[together]))]
    return order


def distinct_groups(groups: npt.NDArray[np.integer[Any]]) -> list[int]:
    """The groups that occur, in order; for small integers such as lanes, by counting them."""
    if not len(groups):
        return []
    least = int(groups.min())
    found: list[int] = (np.flatnonzero(np.bincount(groups - least)) + least).tolist()
    return found
