"""Trials on a terminal: the table, the best, and what to write."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.report.console import UNLIMITED, print_heading, print_line, width_for
from stepscope.report.frames import print_trailed
from stepscope.report.outputs import Layout, Sink
from stepscope.report.trial.words import (
    COLUMNS,
    as_it_is,
    costs,
    lines_to_write,
    next_commands,
    notes,
    promise_kept,
    rows,
)
from stepscope.run.plain_text import printable
from stepscope.run.trials import TrialsRecord


def write(record: TrialsRecord, sink: Sink, _layout: Layout) -> None:
    """Print what came of the trials."""
    console = sink.console(width=width_for(sink))
    console.print(Text.assemble(("Verdict  ", "bold"), (printable(record.verdict), "bold")))
    print_line(console, as_it_is(record))
    print_trials(record, console)
    winner = record.winner
    if winner is not None:
        print_heading(console, "Write")
        for line in lines_to_write(winner):
            print_line(console, f"  {line}")
        kept = promise_kept(winner)
        if kept:
            print_line(console, f"  ({kept})")
        if winner.risks:
            print_line(console, f"  Risks: {winner.risks}")
    told = notes(record)
    if told:
        print_heading(console, "Notes")
        for note in told:
            print_line(console, f"  {note}")
    print_heading(console, "Look further")
    for line in next_commands(record):
        print_line(console, f"  {line}")
    console.print()
    print_line(console, costs(record))


def print_trials(record: TrialsRecord, console: Console) -> None:
    """Print the table of trials."""
    found = rows(record)
    if not found:
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    cells = [[printable(cell) for cell in row] for row in found]
    # Where no line is cut, a verdict of many words would make the whole table as wide as itself.
    is_trailed = console.width >= UNLIMITED
    *names, last = COLUMNS
    for name in names if is_trailed else COLUMNS:
        is_number = name in COLUMNS[1:4]
        table.add_column(name, justify="right" if is_number else "left", no_wrap=name == "Fix")
    for row in cells:
        table.add_row(*map(Text, row[:-1] if is_trailed else row))
    console.print()
    if is_trailed:
        print_trailed(table, last, [row[-1] for row in cells], console)
    else:
        console.print(table)
