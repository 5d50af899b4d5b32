"""Rows as a Parquet file."""

from __future__ import annotations

import io
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

    from stepscope.report.outputs import Layout, Sink


def write(_module: ModuleType, rows: pl.DataFrame, sink: Sink, _layout: Layout) -> None:
    """Write the file."""
    buffer = io.BytesIO()
    rows.write_parquet(buffer, compression="zstd")
    sink.write(buffer.getvalue())
