"""The resolution of the clock that a trace's times were written with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.intervals import Int64Array

COARSE_CLOCKS_NS = (1000, 250)
"""Resolutions of older files: whole microseconds until 2023, then microseconds since 1970 as
doubles, which are 0.25 µs apart. Current files have exact nanoseconds."""

_STARTS_AT_ONCE = 100_000


def clock_resolution_ns(
    starts: Int64Array, rows: npt.NDArray[np.signedinteger[Any]] | None = None
) -> int:
    """Returns the resolution of the clock behind the starts: one of `COARSE_CLOCKS_NS`, or 0.

    0 means exact nanoseconds, which is also assumed for fewer than two distinct starts.

    Args:
        rows: The events to look at. Default: all.
    """
    step = 0
    count = len(starts) if rows is None else len(rows)
    earliest = starts[0 if rows is None else rows[0]] if count else 0
    for first in range(0, count, _STARTS_AT_ONCE):
        part = slice(first, first + _STARTS_AT_ONCE)
        some = starts[part] if rows is None else starts[rows[part]]
        step = math.gcd(step, int(np.gcd.reduce(some - earliest)))
        if step and all(step % clock for clock in COARSE_CLOCKS_NS):
            return 0
    return next((clock for clock in COARSE_CLOCKS_NS if step and step % clock == 0), 0)
