"""One table of an answer about a snapshot as CSV: all rows, integer nanoseconds and bytes."""

from __future__ import annotations

from stepscope.memory.questions.table import MemoryAnswer
from stepscope.report.answer.columns import check_columns, selected
from stepscope.report.answer.tables import table_of
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import frame_to_csv


def write(answer: MemoryAnswer, sink: Sink, layout: Layout) -> None:
    """Write the chosen table, or the first one."""
    frame = table_of(answer.result, answer.question, layout.table)
    check_columns({"": frame}, layout.columns)
    sink.write(frame_to_csv(selected(frame, layout.columns)))
