"""Polars columns with nulls, from arrays."""

from __future__ import annotations

from typing import Any

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
    if present is None:
        return column
    return column.zip_with(pl.Series(present), pl.Series([None], dtype=column.dtype))
