"""Searches sorted arrays like `numpy.searchsorted`, but faster for many values.

Starts and ends of events are nearly sorted, so each value is close to the previous one. Searching
from there is several times faster than a binary search over the whole array.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit

COMPILED_PAYS_FROM = 50_000
"""Number of values from which the compiled loop is used. Below, loading it takes longer."""

_Int64Array = npt.NDArray[np.int64]


def places(
    ordered: _Int64Array, values: _Int64Array, side: Literal["left", "right"] = "left"
) -> _Int64Array:
    """Returns the indices at which values would be inserted into a sorted array.

    Args:
        values: In any order; ascending runs are fastest.
        side: "left" inserts before equal values, "right" after them.
    """
    is_int64 = ordered.dtype == np.int64 and values.dtype == np.int64
    if len(values) < COMPILED_PAYS_FROM or not is_int64:
        return np.searchsorted(ordered, values, side=side)
    found = np.empty(len(values), np.int64)
    jit(places_by_loop)(
        np.ascontiguousarray(ordered), np.ascontiguousarray(values), side == "right", found
    )
    return found


def places_by_loop(
    ordered: _Int64Array, values: _Int64Array, after: bool, found: Written[np.int64]
) -> None:
    """Fills in the index of each value, searching from the index of the previous one.

    `found` is as long as `values`. Each value is compared only at `high` and `middle`, which are
    checked to be less than the length just before, and never decrease below `low`, which is at
    least 0.
    """
    number = len(ordered)
    at = 0
    for row in range(len(values)):
        value = values[row]
        low = at
        if row > 0 and value < values[row - 1]:
            low, high = 0, at
        else:
            high, step = at, 1
            while high < number and (ordered[high] < value or (after and ordered[high] == value)):
                low = high + 1
                high += step
                step *= 2
            high = min(high, number)
        while low < high:
            middle = (low + high) >> 1
            if ordered[middle] < value or (after and ordered[middle] == value):
                low = middle + 1
            else:
                high = middle
        at = low
        found[row] = at
