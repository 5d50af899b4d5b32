"""Writes one table as a Parquet file: large ones with the project's own fast writer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import polars as pl

from stepscope.trace.parquet.types import Types, cast_to, numbered

_LARGE_ROWS = 20_000
"""Smaller tables are not worth loading compiled code for."""
_ROWS_PER_GROUP = 1 << 18  # Polars divides even smaller tables, which compresses text less


def write_table(
    frame: pl.DataFrame, target: Path, types: Types | None = None, *, row_number: str | None = None
) -> None:
    """Writes a table as a Parquet file.

    Args:
        types: Types to write the columns as, where the table holds them in narrower ones.
        row_number: Name of a first column with the numbers of the rows, which the table lacks.

    Raises:
        OSError: The file cannot be written.
        polars.exceptions.ComputeError: The same.
    """
    if len(frame) >= _LARGE_ROWS:
        write = _fast_writer()
        if write is not None and write(frame, target, types, row_number):
            return
    cast_to(types, numbered(frame, row_number)).write_parquet(
        target, compression="zstd", compression_level=1, row_group_size=_ROWS_PER_GROUP
    )


@functools.cache
def _fast_writer() -> Callable[[pl.DataFrame, Path, Types | None, str | None], bool] | None:
    """Returns the fast writer; None if it cannot be compiled, as in a frozen program."""
    try:
        from stepscope.trace.parquet.writer import prepare, write

        prepare()
    except OSError:  # the source code is not available
        return None
    return write
