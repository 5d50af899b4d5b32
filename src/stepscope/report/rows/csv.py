"""Rows of a query as CSV."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analysis.selection.csv_text import with_csv_text
from stepscope.report.plain import json_cell

if TYPE_CHECKING:
    from stepscope.report.outputs import Layout, Sink


def write(rows: pl.DataFrame, sink: Sink, _layout: Layout) -> None:
    """Write the rows, always in UTF-8."""
    sink.write(rows_to_csv(rows).encode())


def rows_to_csv(rows: pl.DataFrame) -> str:
    """CSV with a header; lists and structs as JSON, bytes as hexadecimal."""
    special = [n for n, kind in rows.schema.items() if kind.is_nested() or kind == pl.Binary]
    flat = rows.with_columns(
        pl.Series(name, [_cell(value) for value in rows[name].to_list()], pl.String)
        for name in special
    )
    return with_csv_text(flat).write_csv()


def _cell(value: object) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else json_cell(value)
