"""Answers on a terminal: tables fit its width, and long ones are cut with a remark."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.analysis.questions import Answers
from stepscope.report.answer.cells import IDENTITIES, headings, label, shown
from stepscope.report.answer.tables import Titled, chosen_tables, numbers_of
from stepscope.report.outputs import Layout, Sink
from stepscope.report.scope import describe_scope
from stepscope.report.text import printable

MOST_ROWS = 30
_WIDEST_NAME = 56
_COLUMN_GAP = 3
_NOISE = re.compile(r"^void |\(anonymous namespace\)::|at::native::|at::cuda::")


def write(answers: Answers, sink: Sink, layout: Layout) -> None:
    """Print the answers one after the other, each as soon as it is ready."""
    for number, answer in enumerate(answers.answers):
        console = sink.console()
        if number:
            console.print()
        console.print(Text(answer.path, "dim"))
        print_result(
            answer.result,
            answers.question,
            console,
            origin_ns=answer.origin_ns,
            rows=layout.rows,
            table=layout.table,
        )


def print_result(
    result: Any,
    question: Titled,
    console: Console,
    *,
    origin_ns: int = 0,
    rows: int | None = MOST_ROWS,
    table: str | None = None,
) -> None:
    """Print a result for a person.

    Args:
        result: The result.
        question: What it answers.
        console: The console.
        origin_ns: Moments are relative to this.
        rows: Maximum number of rows of each table; None: all.
        table: Only the table of this field.
    """
    print_tables(result, question, console, origin_ns=origin_ns, rows=rows, table=table)
    console.print()
    console.print(Text(describe_scope(result.scope), "dim"))
    print_notes(result, console)


def print_notes(result: Any, console: Console) -> None:
    """Print the notes of a result."""
    for note in result.notes:
        console.print(Text(f"Note: {printable(note)}", "yellow"))


def print_tables(
    result: Any,
    question: Titled,
    console: Console,
    *,
    origin_ns: int = 0,
    rows: int | None = MOST_ROWS,
    table: str | None = None,
) -> None:
    """Print the numbers and tables of a result, without its scope; see `print_result`."""
    if table is None:
        for name, value in numbers_of(result).items():
            if value is not None:
                console.print(Text(printable(f"{label(name)}: {shown(name, value, origin_ns)}")))
    for name, frame in chosen_tables(result, question, table).items():
        console.print()
        title = question.titles.get(name, label(name))
        console.print(Text(f"{title} ({len(frame):,})" if len(frame) > 1 else title, "bold"))
        if frame.is_empty():
            console.print(Padding(Text("none", "dim"), (0, 0, 0, 2)))
            continue
        for part in _blocks(frame.head(rows) if rows else frame, origin_ns, console.width):
            console.print(part)
        if rows and len(frame) > rows:
            left = f"and {len(frame) - rows:,} more: --rows all, or --format json"
            console.print(Padding(Text(left, "dim"), (0, 0, 0, 2)))


def _blocks(frame: pl.DataFrame, origin_ns: int, width: int) -> list[Table]:
    """The rows as one table, or as several below each other if the columns do not fit."""
    labels = headings(frame.columns)
    cells = {
        name: [_cell(name, item, origin_ns) for item in frame[name].to_list()]
        for name in frame.columns
    }
    widths = {
        name: max(len(labels[name]), *(len(text) for text in column)) + _COLUMN_GAP
        for name, column in cells.items()
    }
    keys = [name for name in frame.columns[:2] if name in IDENTITIES] or frame.columns[:1]
    blocks = [list(keys)]
    for name in frame.columns:
        if name in keys:
            continue
        if sum(widths[one] for one in (*blocks[-1], name)) > width and len(blocks[-1]) > len(keys):
            blocks.append(list(keys))
        blocks[-1].append(name)
    return [_block(frame, {name: labels[name] for name in b}, cells) for b in blocks]


def _block(frame: pl.DataFrame, columns: dict[str, str], cells: dict[str, list[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, text in columns.items():
        is_number = frame[name].dtype.is_numeric()
        table.add_column(
            Text(text),
            justify="right" if is_number else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row in zip(*(cells[name] for name in columns), strict=True):
        # Text, not markup: names come from untrusted files.
        table.add_row(*(Text(cell) for cell in row))
    return table


def _cell(name: str, value: Any, origin_ns: int) -> str:
    """A cell on a terminal: one line, not too long."""
    text = printable(shown(name, value, origin_ns))
    if len(text) > _WIDEST_NAME:
        # The prefix that nearly all of torch's kernels share says nothing.
        text = _NOISE.sub("", text)
    return text if len(text) <= _WIDEST_NAME else f"{text[: _WIDEST_NAME - 1]}…"
