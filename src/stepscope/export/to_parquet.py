"""`--to parquet`: every table as a Parquet file."""

from __future__ import annotations

import io

import polars as pl

from stepscope.export.answer_tables import write_tables
from stepscope.export.request import Exported, Request, Write


def export(asked: Request) -> Exported:
    """Write one file per table."""

    def one(table: pl.DataFrame, write: Write) -> None:
        buffer = io.BytesIO()
        table.write_parquet(buffer, compression="zstd")
        write(buffer.getvalue())

    return write_tables(asked, ".parquet", one)
