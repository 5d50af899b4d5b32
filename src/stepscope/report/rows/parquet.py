"""Rows of a query as a Parquet file."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from stepscope.report.outputs import Layout, Sink


def write(rows: pl.DataFrame, sink: Sink, _layout: Layout) -> None:
    """Write the file."""
    sink.write(rows_to_parquet(rows))


def rows_to_parquet(rows: pl.DataFrame) -> bytes:
    """The bytes of a Parquet file."""
    buffer = io.BytesIO()
    rows.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()
