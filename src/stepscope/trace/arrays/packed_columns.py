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
    """Columns of 64-bit numbers, as differences from row to row, compressed.

    Differences are small, and compress well. They may overflow 64 bits; the overflow cancels when
    they are added up again.
    """

    names: tuple[str, ...]
    packed: bytes

    @classmethod
    def of(cls, names: Sequence[str], columns: Int64Array) -> PackedColumns:
        """Pack columns, one row of the array per name."""
        differences = np.diff(columns, axis=1, prepend=np.int64(0)).astype(np.int64)
        return cls(tuple(names), zlib.compress(differences.tobytes()))

    def columns(self) -> Int64Array:
        """The columns, one row per name."""
        values = np.frombuffer(zlib.decompress(self.packed), np.int64)
        whole: Int64Array = np.cumsum(values.reshape(len(self.names), -1), axis=1)
        return whole

    def table(self, rank: int) -> pl.DataFrame:
        """The columns, and `rank` beside them."""
        columns = dict(zip(self.names, self.columns(), strict=True))
        return pl.DataFrame(columns).with_columns(rank=pl.lit(rank, pl.Int64))
