"""A polars frame on a terminal, unchanged."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.report.plain import json_cell
from stepscope.run.plain_text import printable

_GAP = 3
_SHORTEST_HEADING = 6


def print_trailed(table: Table, label: str, texts: Sequence[str], console: Console) -> None:
    """Print a table with a column of whole texts behind it, to which nothing is aligned."""
    with console.capture() as captured:
        console.print(table)
    heading, rule, *rows = captured.get().removesuffix("\n").split("\n")
    gap = " " * _GAP
    lines = [f"{heading}{gap}{label}", rule.rstrip() + rule.rstrip()[-1] * (_GAP + len(label))]
    lines += [f"{row}{gap}{text}" for row, text in zip(rows, texts, strict=True)]
    for line in lines:
        console.print(Text.from_ansi(line), soft_wrap=True)


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
    columns = [[_cell(value) for value in frame[name].to_list()] for name in frame.columns]
    headings = [printable(name) for name in frame.columns]
    widths = [
        max(map(len, texts)) for texts in zip(headings, *zip(*columns, strict=True), strict=True)
    ]
    is_narrow = sum(widths) + _GAP * len(widths) > console.width
    for name, heading, texts in zip(frame.columns, headings, columns, strict=True):
        is_amount = frame[name].dtype.is_numeric() or name in amounts
        # Where there is no room, texts and headings wrap; part of a number is another number.
        table.add_column(
            Text(_folded(heading, max(map(len, texts), default=0)) if is_narrow else heading),
            justify="right" if is_amount else "left",
            no_wrap=is_amount,
            overflow="fold",
        )
    for row in zip(*columns, strict=True):
        # Text, because names in a trace may look like markup.
        table.add_row(*map(Text, row))
    console.print(table)


def _folded(heading: str, width: int) -> str:
    """A heading in lines that are hardly wider than its column."""
    return "\n".join(textwrap.wrap(heading, max(width, _SHORTEST_HEADING)))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, dict)):
        return printable(json_cell(value))
    return printable(str(value))
