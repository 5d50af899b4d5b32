"""Answers about a snapshot as GitHub Markdown, with numbers in convenient units."""

from __future__ import annotations

from stepscope.memory.questions.table import MemoryAnswer
from stepscope.report.answer.markdown import notes_to_markdown, tables_to_markdown
from stepscope.report.memory.words import heading
from stepscope.report.outputs import Layout, Sink
from stepscope.report.text import markdown_text


def write(answer: MemoryAnswer, sink: Sink, layout: Layout) -> None:
    """Write the answer."""
    lines = tables_to_markdown(
        answer.result,
        answer.question,
        origin_ns=answer.origin_ns,
        rows=layout.rows,
        table=layout.table,
        columns=layout.columns,
    )
    lines += ["", markdown_text(heading(answer)), *notes_to_markdown(answer.result)]
    sink.write("\n".join(lines) + "\n")
