"""A polars frame on a terminal, unchanged."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.report.plain import json_cell
from stepscope.run.plain_text import printable


def print_frame(
    frame: pl.DataFrame, console: Console, amounts: Collection[str] = frozenset()
) -> None:
    """Print a frame: numbers to the right, nulls empty.

    Args:
        frame: The frame.
        console: Where to print it.
        amounts: Columns of text that are amounts, and go to the right as well.
    """
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, kind in frame.schema.items():
        is_amount = kind.is_numeric() or name in amounts
        table.add_column(Text(printable(name)), justify="right" if is_amount else "left")
    for row in frame.rows():
        # Text, because names in a trace may look like markup.
        table.add_row(*(Text(_cell(value)) for value in row))
    console.print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, dict)):
        return printable(json_cell(value))
    return printable(str(value))
