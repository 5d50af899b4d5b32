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
    """
    column = pl.Series(name, values)
    if present is None or present.all():
        return column
    return column.zip_with(pl.Series(present), pl.Series([None], dtype=column.dtype))


def filled(column: pl.Series, value: float) -> npt.NDArray[Any]:
    """Returns the values of a column as an array, with one value in place of nulls.

    Args:
        column: Numbers or truth values. Without nulls, they are not copied.
    """
    return (column.fill_null(value) if column.has_nulls() else column).to_numpy()


def distinct(numbers: pl.Series) -> npt.NDArray[Any]:
    """Returns the distinct values of a column of numbers but null, in order."""
    return numbers.drop_nulls().unique().sort().to_numpy()


def gathered(column: pl.Series, rows: pl.Series) -> pl.Series:
    """Returns the values of some rows of a column; null for null.

    `Series.gather` runs a query for that, which takes longer than some thousands of values.
    """
    return column[rows.cast(pl.get_index_type())]


def are_among(numbers: pl.Series, length: int) -> npt.NDArray[np.bool_]:
    """For each number from 0 to `length` - 1, such as that of an event, whether a column has it.

    To look numbers up in this is far quicker than to hash them, even where they are few of many.

    Args:
        numbers: The column; nulls are none of them.
    """
    found = np.zeros(length, np.bool_)
    present = numbers.filter(numbers.is_not_null()) if numbers.has_nulls() else numbers
    found[present.to_numpy()] = True
    return found
