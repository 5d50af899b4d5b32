"""One table of each answer as CSV: all rows, integer nanoseconds."""

from __future__ import annotations

from stepscope.analysis.questions import Answers
from stepscope.report.answer.columns import check_columns, selected
from stepscope.report.answer.tables import table_of
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import frame_to_csv


def write(answers: Answers, sink: Sink, layout: Layout) -> None:
    """Write the chosen table of each answer, or the first one."""
    for number, answer in enumerate(answers.answers):
        # The ranks of a job have one answer together.
        if answers.traces > 1 and number == 0 and not answers.question.over_ranks:
            sink.remark(f"{answers.traces} traces, one CSV after the other")
        frame = table_of(answer.result, answers.question, layout.table)
        check_columns({"": frame}, layout.columns)
        sink.write(frame_to_csv(selected(frame, layout.columns)))
