"""Answers about a snapshot as JSON: all rows, integer nanoseconds and bytes."""

from __future__ import annotations

from stepscope.memory.questions.table import MemoryAnswer
from stepscope.report.answer.tables import numbers_of, tables_of
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import json_text, plain


def write(answer: MemoryAnswer, sink: Sink, _layout: Layout) -> None:
    """Write one object: the question, the numbers and tables by field, and the notes."""
    result = answer.result
    document = {
        "kind": answer.kind,
        "question": answer.question.name,
        "path": answer.path,
        **{name: plain(value) for name, value in numbers_of(result).items()},
        **{name: plain(table) for name, table in tables_of(result).items()},
        "notes": list(result.notes),
    }
    sink.write(json_text(document))
