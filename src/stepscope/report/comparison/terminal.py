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
from stepscope.report.console import width_for
from stepscope.report.outputs import Layout, Sink
from stepscope.report.text import printable

_INDENT = 2
_GAP = 3
_SHORTEST_NAME = 16
_REMARK = len("disappeared,")
_STYLES = {"grew": "red", "appeared": "red", "shrank": "green", "disappeared": "green"}


def write(checked: CheckedComparison, sink: Sink, layout: Layout) -> None:
    """Print the comparison."""
    print_comparison(checked.comparison, sink.console(width=width_for(sink)), layout.rows)


def print_comparison(comparison: Comparison, console: Console, rows: int | None) -> None:
    """Print the step, its parts, and the kernels and operators that changed most."""
    for word, side in (("before", comparison.a), ("after", comparison.b)):
        line = Text(printable(f"{word:7} {side.path}  ·  {steps_of(side)}"), "dim")
        console.print(line, soft_wrap=True)
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
        console.print(Padding(_table(chosen, console.width - _INDENT), (0, 0, 0, _INDENT)))
    for side_line in scopes(comparison):
        console.print(Text(side_line, "dim"))
    for note in comparison.notes:
        console.print(Text(f"Note: {printable(note)}", "yellow"))


def _table(rows: pl.DataFrame, width: int) -> Table:
    """The table; only names and the last column's remarks give way, numbers never do."""
    lines = [(cells(row), row["status"]) for row in rows.iter_rows(named=True)]
    numbers = [
        max(len(heading), *(len(texts[place]) for texts, _ in lines))
        for place, heading in enumerate(COLUMNS[:-1])
        if place
    ]
    left = width - sum(numbers) - _GAP * (len(COLUMNS) - 1)
    remark = min(max(len(texts[-1]) for texts, _ in lines), max(_REMARK, left // 3))
    name = max(_SHORTEST_NAME, left - remark)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(COLUMNS[0], overflow="ellipsis", no_wrap=True, max_width=name)
    for heading, wide in zip(COLUMNS[1:-1], numbers, strict=True):
        table.add_column(heading, justify="right", no_wrap=True, min_width=wide)
    table.add_column(COLUMNS[-1], max_width=remark)
    for texts, status in lines:
        style = _STYLES.get(status, "dim")
        table.add_row(*(Text(text) for text in texts[:3]), Text(texts[3], style), *texts[4:])
    return table
