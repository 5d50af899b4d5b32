"""Parts of an event as the text of Chrome JSON, as polars expressions."""

from __future__ import annotations

import polars as pl


def microseconds(column: str) -> pl.Expr:
    """A column of nanoseconds as microseconds with three decimals, exactly."""
    size = pl.col(column).abs()
    sign = pl.when(pl.col(column) < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    decimals = (size % 1000).cast(pl.String).str.zfill(3)
    return pl.concat_str(sign, (size // 1000).cast(pl.String), pl.lit("."), decimals)


def member(key: str, value: pl.Expr) -> pl.Expr:
    """A further member of an object, from JSON text; nothing where the text is null."""
    return (
        pl.when(value.is_null())
        .then(pl.lit(""))
        .otherwise(pl.concat_str(pl.lit(f', "{key}": '), value, ignore_nulls=True))
    )
