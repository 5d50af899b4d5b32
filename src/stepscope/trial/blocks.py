"""The error of a mean of values that depend on their neighbours, from means of blocks of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

BLOCKS = 6
"""Into how many blocks consecutive values are divided at least."""


def means_of_blocks(values: Sequence[float]) -> list[float]:
    """The means of blocks of consecutive values, which may depend on their neighbours."""
    size = max(1, len(values) // BLOCKS)
    starts = range(0, len(values) - size + 1, size)
    return [statistics.fmean(values[start : start + size]) for start in starts]


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of at least two independent values."""
    return statistics.stdev(values) / math.sqrt(len(values))
