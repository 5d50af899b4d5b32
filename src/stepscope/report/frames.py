"""Frames as text: a table for people, csv, json or Parquet for programs."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Literal

import polars as pl

if TYPE_CHECKING:
    from rich.console import Console

TextFormat = Literal["table", "csv", "json", "md"]


def frame_as_csv(frame: pl.DataFrame) -> str:
    """Comma-separated values with a header; lists and structs as JSON, bytes as hexadecimal."""
    special = [n for n, kind in frame.schema.items() if kind.is_nested() or kind == pl.Binary]
    plain = frame.with_columns(
        pl.Series(name, [_csv_cell(value) for value in frame[name].to_list()], pl.String)
        for name in special
    )
    return plain.write_csv()


def frame_as_json(frame: pl.DataFrame) -> str:
    """A list of objects, one per row; integers stay integers, bytes become hexadecimal."""
    return json.dumps(frame.to_dicts(), ensure_ascii=False, indent=2, default=_plain)


def frame_as_parquet(frame: pl.DataFrame) -> bytes:
    """A Parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def frame_as_markdown(frame: pl.DataFrame) -> str:
    """A Markdown table."""
    rows = [
        [_cell(value).replace("|", "\\|").replace("\n", " ") for value in row]
        for row in frame.rows()
    ]
    lines = [
        frame.columns,
        ["---:" if kind.is_numeric() else "---" for kind in frame.dtypes],
        *rows,
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def print_frame(frame: pl.DataFrame, console: Console) -> None:
    """Lay a frame out for the width of the terminal; numbers to the right, nulls empty."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, kind in frame.schema.items():
        table.add_column(Text(name), justify="right" if kind.is_numeric() else "left")
    for row in frame.rows():
        # Text, because names from a trace may look like markup.
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, dict)):
        return _as_json(value)
    return str(value)


def _csv_cell(value: object) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else _as_json(value)


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
