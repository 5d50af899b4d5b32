"""Types that the columns of a table are written as, where it holds them in narrower ones."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

Types = Mapping[str, "pl.DataType | type[pl.DataType]"]
"""Types of columns by their names."""


def cast_to(types: Types | None, frame: pl.DataFrame) -> pl.DataFrame:
    """Returns a table with columns of these types; None: as they are."""
    return frame if types is None else frame.cast(pl.Schema(types))
