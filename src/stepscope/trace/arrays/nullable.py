"""Columns with nulls, from arrays."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import polars as pl


def nullable(values: npt.NDArray[Any], present: npt.NDArray[Any] | None, name: str) -> pl.Series:
    """A column of numbers, null where they are not present.

    Args:
        values: The numbers; any where they are not present.
        present: For each, whether it is; None: all of them are.
        name: Of the column.
    """
    column = pl.Series(name, values)
    if present is None:
        return column
    return pl.select(
        pl.when(pl.lit(pl.Series(present))).then(pl.lit(column)).alias(name)
    ).to_series()
