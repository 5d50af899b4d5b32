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
    mean_step,
    scopes,
    steps_of,
    warnings,
)
from stepscope.report.console import width_for
from stepscope.report.outputs import Layout, Sink
from stepscope.report.text import shortened
from stepscope.run.plain_text import printable

_INDENT = 2
_GAP = 2
_SHORTEST_NAME = 12
_GIVE_WAY = ("calls/step", "noise", "before", "after")
"""Columns that a narrow terminal does without, the first one first."""
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
    console.print(Text(headline(comparison), "bold"))
    for warning in warnings(comparison):
        console.print(Text(printable(warning), "yellow"))
    for table, title in TITLES.items():
        chosen = chosen_rows(comparison, table, rows)
        if not len(chosen):
            continue
        console.print()
        of = comparison.changes.filter(pl.col("table") == table)
        heading = Text(title, "bold")
        if mean := mean_step(comparison, table):
            heading.append(f"   {mean}", "dim")
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
    """The table: names are cut, then columns left out; numbers are never cut."""
    lines = [(cells(row), row["status"]) for row in rows.iter_rows(named=True)]
    columns = list(zip(*(texts for texts, _ in lines), strict=True))
    wide = [
        max(map(len, (heading, *texts))) for heading, texts in zip(COLUMNS, columns, strict=True)
    ]
    shown = [place for place, texts in enumerate(columns) if any(texts)]
    for heading in _GIVE_WAY:
        if _SHORTEST_NAME + sum(wide[place] + _GAP for place in shown[1:]) > width:
            shown = [place for place in shown if COLUMNS[place] != heading]
    rest = sum(wide[place] + _GAP for place in shown[1:])
    columns[0] = tuple(shortened(columns[0], max(_SHORTEST_NAME, width - rest)))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 0, 0, 1))
    for place in shown:
        is_number = bool(COLUMNS[place]) and place > 0
        table.add_column(COLUMNS[place], justify="right" if is_number else "left", no_wrap=True)
    for number, (_, status) in enumerate(lines):
        styles = {COLUMNS.index("change"): _STYLES.get(status, "dim")}
        table.add_row(*(Text(columns[place][number], styles.get(place, "")) for place in shown))
    return table
