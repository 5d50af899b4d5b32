"""Answers on a terminal: tables fit its width, and what is left out is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.analysis.questions import Answers
from stepscope.report.answer.cells import shown
from stepscope.report.answer.columns import (
    asked_columns,
    check_columns,
    first_columns,
    fit,
    to_trail,
)
from stepscope.report.answer.tables import (
    Titled,
    chosen_tables,
    number_labels,
    shown_numbers,
    title_of,
    without_rows,
)
from stepscope.report.console import UNLIMITED, width_for
from stepscope.report.frames import print_trailed
from stepscope.report.outputs import Layout, Sink
from stepscope.report.scope import describe_scope
from stepscope.report.text import shortened
from stepscope.report.units import plural
from stepscope.run.plain_text import printable, without_namespaces

MOST_ROWS = 30
_LONG_NAME = 24


def write(answers: Answers, sink: Sink, layout: Layout) -> None:
    """Print the answers one after the other, each as soon as it is ready."""
    for number, answer in enumerate(answers.answers):
        console = sink.console(width=width_for(sink))
        # What was misspelt is refused before anything is printed.
        check_columns(chosen_tables(answer.result, answers.question, layout.table), layout.columns)
        if number:
            console.print()
        console.print(Text(printable(str(answer.path)), "dim"))
        print_result(
            answer.result,
            answers.question,
            console,
            origin_ns=answer.origin_ns,
            rows=layout.rows,
            table=layout.table,
            columns=layout.columns,
        )


def print_result(
    result: Any,
    question: Titled,
    console: Console,
    *,
    origin_ns: int = 0,
    rows: int | None = MOST_ROWS,
    table: str | None = None,
    columns: Sequence[str] | None = None,
) -> None:
    """Print a result for a person.

    Args:
        result: The result.
        question: What it answers.
        console: The console.
        origin_ns: Moments are relative to this.
        rows: Maximum number of rows of each table; None: all.
        table: Only the table of this field.
        columns: Only these columns; None: the first ones, as many as fit.
    """
    print_tables(
        result, question, console, origin_ns=origin_ns, rows=rows, table=table, columns=columns
    )
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
    columns: Sequence[str] | None = None,
) -> None:
    """Print the numbers and tables of a result, without its scope; see `print_result`."""
    chosen = chosen_tables(result, question, table)
    if table is None and columns is None:
        labels = number_labels(result)
        for name, value in shown_numbers(result, chosen).items():
            console.print(Text(printable(f"{labels[name]}: {shown(name, value, origin_ns)}")))
    check_columns(chosen, columns)
    for name, frame in chosen.items():
        if frame.is_empty():
            continue
        if columns is None:
            names = first_columns(frame, question.name, name)
        else:
            names = asked_columns(frame, columns)
        if not names:
            continue
        console.print()
        title = title_of(name, question)
        console.print(Text(f"{title} ({len(frame):,})" if len(frame) > 1 else title, "bold"))
        left_out = _print_table(
            frame.head(rows) if rows else frame, names, console, origin_ns, asked=bool(columns)
        )
        remarks = []
        if rows and len(frame) > rows:
            remarks.append(f"{plural(len(frame) - rows, 'more row')}: --rows all")
        if left_out:
            remarks.append(f"{plural(left_out, 'more column')}: --columns all, or --format json")
        if remarks:
            console.print(Padding(Text("; ".join(remarks), "dim"), (0, 0, 0, 2)))
    empty = without_rows(chosen, question)
    if empty is not None:
        console.print()
        console.print(Text(empty, "dim"))


def _print_table(
    frame: pl.DataFrame, names: Sequence[str], console: Console, origin_ns: int, *, asked: bool
) -> int:
    """Print columns of a table; returns how many of its columns are not shown."""
    cells = {
        name: [printable(shown(name, item, origin_ns)) for item in frame[name].to_list()]
        for name in names
    }
    is_limited = console.width < UNLIMITED
    if is_limited:
        # The prefix that nearly all of torch's kernels share says nothing.
        cells = {name: [_without_noise(text) for text in column] for name, column in cells.items()}
    fitted = fit(frame, cells, console.width, may_drop=not asked)
    labels = fitted.labels
    for columns_of_block in fitted.blocks:
        trailing = None
        if not is_limited and not asked:
            trailing = to_trail(columns_of_block, fitted.widths)
        block = [name for name in columns_of_block if name != trailing]
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for name in block:
            is_number = frame[name].dtype.is_numeric()
            table.add_column(
                Text(labels[name]), justify="right" if is_number else "left", no_wrap=True
            )
        columns = [shortened(cells[name], fitted.widths[name]) for name in block]
        for row in zip(*columns, strict=True):
            # Text, not markup: names come from untrusted files.
            table.add_row(*map(Text, row))
        if trailing is None:
            console.print(table)
        else:
            print_trailed(table, labels[trailing], cells[trailing], console)
    return len(frame.columns) - len(names) + fitted.left_out


def _without_noise(text: str) -> str:
    return without_namespaces(text) if len(text) > _LONG_NAME else text
