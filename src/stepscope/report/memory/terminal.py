"""Answers about a snapshot on a terminal."""

from __future__ import annotations

from rich.text import Text

from stepscope.memory.questions.table import MemoryAnswer
from stepscope.report.answer.terminal import print_notes, print_tables
from stepscope.report.console import width_for
from stepscope.report.memory.words import heading, question_of
from stepscope.report.outputs import Layout, Sink
from stepscope.run.plain_text import printable


def write(answer: MemoryAnswer, sink: Sink, layout: Layout) -> None:
    """Print the answer."""
    console = sink.console(width=width_for(sink))
    console.print(Text(printable(heading(answer)), "dim"))
    print_tables(
        answer.result,
        question_of(answer),
        console,
        origin_ns=answer.origin_ns,
        rows=layout.rows,
        table=layout.table,
        columns=layout.columns,
    )
    print_notes(answer.result, console)
