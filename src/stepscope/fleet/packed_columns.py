"""Columns of whole numbers about one rank, small enough to be sent between processes."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.trace.arrays.intervals import Int64Array


@dataclass(frozen=True)
class PackedColumns:
    """Columns of one rank.

    Attributes:
        packed: Their values, compressed.
    """

    names: tuple[str, ...]
    packed: bytes

    @classmethod
    def of(cls, names: Sequence[str], columns: Int64Array) -> PackedColumns:
        """Pack columns.

        Args:
            columns: One row per name.
        """
        return cls(tuple(names), zlib.compress(columns.astype(np.int64).tobytes()))

    def table(self, rank: int) -> pl.DataFrame:
        """The columns, and `rank` beside them."""
        values = np.frombuffer(zlib.decompress(self.packed), np.int64)
        columns = dict(zip(self.names, values.reshape(len(self.names), -1), strict=True))
        return pl.DataFrame(columns).with_columns(rank=pl.lit(rank, pl.Int64))
