"""`--to csv`: every table as a CSV file, in integer nanoseconds and bytes."""

from __future__ import annotations

import polars as pl

from stepscope.analysis.selection.rows import with_csv_text
from stepscope.export.answer_tables import flat, write_tables
from stepscope.export.request import Exported, Request, Write


def export(asked: Request) -> Exported:
    """Write one file per table."""

    def one(table: pl.DataFrame, write: Write) -> None:
        write(with_csv_text(flat(table)).write_csv().encode())

    return write_tables(asked, ".csv", one)
