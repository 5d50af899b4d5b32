"""Types of columns: those that they are written as, and those in which Parquet stores them."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

Types = Mapping[str, "pl.DataType | type[pl.DataType]"]
"""Types of columns by their names."""

INT32, INT64, BYTE_ARRAY = 1, 2, 6  # physical types

_PHYSICAL: dict[type[pl.DataType], int] = {
    pl.Int32: INT32,
    pl.UInt32: INT32,
    pl.Int64: INT64,
    pl.UInt64: INT64,
    pl.Enum: BYTE_ARRAY,
    pl.String: BYTE_ARRAY,
}


def physical_type(dtype: pl.DataType) -> int:
    """Returns the type in which Parquet stores a type of Polars."""
    return _PHYSICAL[dtype.base_type()]


def is_suitable(dtype: pl.DataType) -> bool:
    """Whether columns of a type can be written."""
    return dtype.base_type() in _PHYSICAL


def cast_to(types: Types | None, frame: pl.DataFrame) -> pl.DataFrame:
    """Returns a table with columns of these types; None: as they are."""
    return frame if types is None else frame.cast(pl.Schema(types))


def numbered(frame: pl.DataFrame, name: str | None, first: int = 0) -> pl.DataFrame:
    """Returns a table with a first column that numbers its rows; None: unchanged."""
    if name is None:
        return frame
    numbers = pl.int_range(first, first + len(frame), eager=True).alias(name)
    return frame.select(numbers, pl.all())
