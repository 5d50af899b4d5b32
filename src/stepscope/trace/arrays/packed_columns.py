"""Columns of whole numbers about one rank, small enough to be sent between processes."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, names=_first_equal(state["names"]))

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


@functools.cache
def _first_equal(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the first names that were equal: thousands of ranks have the same."""
    return names


def table_of_ranks(ranks: Mapping[int, PackedColumns]) -> pl.DataFrame:
    """The columns of some ranks, at least one, under each other, and `rank` beside them."""
    columns = [one.columns() for one in ranks.values()]
    names = next(iter(ranks.values())).names
    whole = dict(zip(names, np.concatenate(columns, axis=1), strict=True))
    lengths = [one.shape[1] for one in columns]
    return pl.DataFrame({**whole, "rank": np.repeat(np.array([*ranks], np.int64), lengths)})
