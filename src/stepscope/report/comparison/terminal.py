"""A comparison on a terminal."""

from __future__ import annotations

import polars as pl
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.analysis.comparison.compare import Comparison
from stepscope.report.comparison.result import CheckedComparison
from stepscope.report.comparison.words import (
    COLUMNS,
    TITLES,
    cells,
    chosen_rows,
    headline,
    scopes,
    steps_of,
)
from stepscope.report.outputs import Layout, Sink
from stepscope.report.text import printable

_STYLES = {"grew": "red", "appeared": "red", "shrank": "green", "disappeared": "green"}


def write(checked: CheckedComparison, sink: Sink, layout: Layout) -> None:
    """Print the comparison."""
    print_comparison(checked.comparison, sink.console(), layout.rows)


def print_comparison(comparison: Comparison, console: Console, rows: int | None) -> None:
    """Print the step, its parts, and the kernels and operators that changed most."""
    for word, side in (("before", comparison.a), ("after", comparison.b)):
        console.print(Text(printable(f"{word:7} {side.path}  ·  {steps_of(side)}"), "dim"))
    console.print()
    console.print(Text(headline(comparison.step), "bold"))
    for table, title in TITLES.items():
        chosen = chosen_rows(comparison, table, rows)
        if not len(chosen):
            continue
        console.print()
        of = comparison.changes.filter(pl.col("table") == table)
        heading = Text(title, "bold")
        if table == "operator":
            heading.append(f"   {comparison.a.operators_basis}", "dim")
        if len(of) > len(chosen):
            heading.append(f"   the {len(chosen)} largest changes of {len(of)}", "dim")
        console.print(heading)
        console.print(Padding(_table(chosen), (0, 0, 0, 2)))
    for line in scopes(comparison):
        console.print(Text(line, "dim"))
    for note in comparison.notes:
        console.print(Text(f"Note: {printable(note)}", "yellow"))


def _table(rows: pl.DataFrame) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(COLUMNS[0], overflow="ellipsis", no_wrap=True)
    for name in COLUMNS[1:-1]:
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    table.add_column(COLUMNS[-1])
    for row in rows.iter_rows(named=True):
        texts = cells(row)
        style = _STYLES.get(row["status"], "dim")
        table.add_row(*(Text(text) for text in texts[:3]), Text(texts[3], style), *texts[4:])
    return table
