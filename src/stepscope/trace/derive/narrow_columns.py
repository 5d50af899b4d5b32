"""Columns about very many events: in as few bits as hold them, without copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import nullable
from stepscope.trace.derive.nesting import RowNumbers

_MANY = 200_000
"""Rows from which memory counts."""


def narrowed(values: Int64Array) -> npt.NDArray[np.signedinteger[Any]]:
    """The same numbers, in 32 bits if there are very many and all of them fit."""
    if len(values) < _MANY:
        return values
    narrow = np.iinfo(np.int32)
    fits = narrow.min <= values.min() and values.max() <= narrow.max
    return values.astype(np.int32) if fits else values


def row_numbers(name: str, values: RowNumbers) -> pl.Series:
    """A column of numbers of events, with nulls where they are negative."""
    return column(name, values, values >= 0)


def column(name: str, values: npt.NDArray[Any], present: BoolArray | None = None) -> pl.Series:
    """A column that keeps its array, which must not change; copied where there are few values.

    Args:
        values: Numbers of 32 or 64 bits.
        present: Which of them are not null; None: all.
    """
    if len(values) < _MANY:
        return nullable(values, present, name)
    from stepscope.trace.arrays.arrow_columns import numbers_of

    if present is None or present.all():
        return numbers_of(name, values)
    return numbers_of(name, values, np.packbits(present, bitorder="little"))
