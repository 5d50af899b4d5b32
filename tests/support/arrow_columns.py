"""Which columns still refer to arrays that were handed to Polars."""

from __future__ import annotations

from stepscope.trace.arrays.kept_arrays import KEEPER


def columns_in_use() -> int:
    """How many columns made from arrays still refer to them."""
    KEEPER.drop_released()
    return len(KEEPER)
