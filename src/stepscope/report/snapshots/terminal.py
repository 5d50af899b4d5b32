"""The verdict on memory snapshots on a terminal."""

from __future__ import annotations

from rich.text import Text

from stepscope.advice.memory_report import MemoryReport
from stepscope.report.answer.terminal import print_tables
from stepscope.report.console import width_for
from stepscope.report.diagnosis.terminal import (
    beside,
    cut_line,
    findings_block,
    print_short_findings,
)
from stepscope.report.memory.words import question_of
from stepscope.report.outputs import Layout, Sink
from stepscope.report.snapshots.words import (
    RANKS_ASKED,
    RanksTable,
    header,
    notes,
    peak,
    ranks_table,
)
from stepscope.run.plain_text import printable

_MOST_NOTES = 2
_SHORT_ROWS = 5
_ROWS = 15


def write(report: MemoryReport, sink: Sink, layout: Layout) -> None:
    """Print the report: on one screen, or in full."""
    console = sink.console(width=width_for(sink))
    rank = report.shown.rank
    has_ranks = len(report.snapshots) > 1
    rows = _ROWS if layout.is_full else _SHORT_ROWS
    console.print(Text(printable(report.location), "dim"), soft_wrap=True)
    console.print(Text(printable(header(report)), "dim"))
    console.print()
    console.print(beside("Verdict", Text(printable(report.verdict), "bold")))
    console.print(beside("Peak", Text(peak(report.shown))))
    console.print()
    if layout.is_full:
        console.print(findings_block(report.findings, rank, has_ranks=has_ranks))
    else:
        print_short_findings(report.findings, rank, console, of_steps=False)
    if has_ranks:
        print_tables(RanksTable(ranks_table(report)), RANKS_ASKED, console, rows=rows)
    asked = question_of(report.shown.overview)
    for table in ("categories", "lines"):
        print_tables(report.shown.overview.result, asked, console, rows=rows, table=table)
    told = notes(report)
    console.print()
    for note in told if layout.is_full else told[:_MOST_NOTES]:
        text = Text.assemble(("Note: ", "yellow"), printable(note))
        console.print(text if layout.is_full else cut_line(text, console))
    if not layout.is_full:
        console.print(Text("--full shows evidence, advice in full, and all notes", "dim"))
