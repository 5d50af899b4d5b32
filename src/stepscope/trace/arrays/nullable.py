"""Polars columns with nulls, from arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl


def nullable(values: npt.NDArray[Any], present: npt.NDArray[Any] | None, name: str) -> pl.Series:
    """Returns a column of numbers with nulls.

    Args:
        values: The numbers. Those that are not present can have any value.
        present: Whether each number is present; None if all are.
        name: Name of the column.
    """
    column = pl.Series(name, values)
    if present is None or present.all():
        return column
    return column.zip_with(pl.Series(present), pl.Series([None], dtype=column.dtype))


def are_among(numbers: pl.Series, length: int) -> npt.NDArray[np.bool_]:
    """For each number from 0 to `length` - 1, such as that of an event, whether a column has it.

    To look numbers up in this is far quicker than to hash them, even where they are few of many.

    Args:
        numbers: The column; nulls are none of them.
        length: How many numbers there are.
    """
    found = np.zeros(length, np.bool_)
    present = numbers.filter(numbers.is_not_null()) if numbers.has_nulls() else numbers
    found[present.to_numpy()] = True
    return found
