"""Columns that compiled loops fill, and the tables that they become."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.memory.reading import stacks
from stepscope.memory.reading.values import MISSING
from stepscope.memory.schema import BLOCK_STATE, BLOCKS, SEGMENTS
from stepscope.trace.arrays.nullable import nullable

Array = npt.NDArray[Any]


class Columns:
    """Columns that a compiled loop fills, the frames behind the numbers."""

    def __init__(self, rows: int, *types: str, frames: Any, others: Iterable[str] = ()) -> None:
        kinds = [*types, frames, *others]
        self._place = len(types)
        self.arrays = tuple(np.empty(rows, kind) for kind in kinds)

    def cut(self, rows: int) -> Columns:
        """Keeps the first rows."""
        self.arrays = tuple(array[:rows] for array in self.arrays)
        return self

    @property
    def frames(self) -> Array:
        """The lists of frames, as values of the tree."""
        array: Array = self.arrays[self._place]
        return array


def segments_table(columns: Columns, of_row: Array) -> pl.DataFrame:
    """The table of segments; `of_row` has the number of each row's stack."""
    (
        device, address, size, allocated, active, requested, stream, large, pool, expandable, _,
    ) = columns.arrays  # fmt: skip
    return pl.DataFrame(
        {
            "segment": np.arange(len(device), dtype=np.int32),
            "device": device,
            "address": known(address),
            "size_bytes": known(size),
            "allocated_bytes": known(allocated),
            "active_bytes": known(active),
            "requested_bytes": known(requested),
            "stream": known(stream),
            "is_large": known(large, 2).cast(pl.Boolean),
            "pool": known(pool, -1),
            "is_expandable": pl.Series(expandable == 1),
            "stack": known(of_row, stacks.NO_STACK),
        },
        schema=SEGMENTS,
    )


def blocks_table(columns: Columns, of_row: Array) -> pl.DataFrame:
    """The table of blocks; `of_row` has the number of each row's stack."""
    segment, address, size, requested, state, _ = columns.arrays
    return pl.DataFrame(
        {
            "block": np.arange(len(segment), dtype=np.int64),
            "segment": segment,
            "address": known(address),
            "size_bytes": size,
            "requested_bytes": known(requested),
            "state": enum_of(state, BLOCK_STATE),
            "stack": known(of_row, stacks.NO_STACK),
        },
        schema=BLOCKS,
    )


def stacks_table(of_stack: Array, of_frame: Array, count: int) -> pl.DataFrame:
    """One row per stack, from one row per frame in the order of the stacks."""
    listed = (
        pl.DataFrame({"stack": pl.Series(of_stack).set_sorted(), "frames": of_frame})
        .group_by("stack", maintain_order=True)
        .agg("frames")
    )
    if len(listed) == count:
        return listed
    everything = pl.DataFrame({"stack": np.arange(count, dtype=np.uint32)})
    return everything.join(listed, on="stack", how="left", maintain_order="left").with_columns(
        pl.col("frames").fill_null(pl.lit([], dtype=pl.List(pl.UInt32)))
    )


def known(values: Array, missing: int = MISSING) -> pl.Series:
    """A column of numbers, with null for the one that stands for it."""
    return nullable(values, values != missing, "")


def enum_of(codes: Array, kind: pl.Enum) -> pl.Series:
    """A column of names, from their places among the categories."""
    return pl.Series(kind.categories, dtype=kind).gather(codes)
