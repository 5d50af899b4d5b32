"""Answers as JSON: all rows, integer nanoseconds, scope and notes."""

from __future__ import annotations

from typing import Any

from stepscope.analysis.questions import Answers
from stepscope.report.answer.tables import numbers_of, tables_of
from stepscope.report.outputs import Layout, Sink
from stepscope.report.plain import json_text, plain, scope_to_dict


def write(answers: Answers, sink: Sink, _layout: Layout) -> None:
    """Write one object, or a list of objects for several answers."""
    documents = [
        {
            "question": answers.question.name,
            "path": answer.path,
            **result_to_dict(answer.result),
        }
        for answer in answers.answers
    ]
    document: Any = documents[0] if len(documents) == 1 else documents
    sink.write(json_text(document))


def result_to_dict(result: Any) -> dict[str, Any]:
    """A result as plain values: numbers and tables by field, then scope and notes."""
    return {
        **{name: plain(value) for name, value in numbers_of(result).items()},
        **{name: plain(table) for name, table in tables_of(result).items()},
        "scope": scope_to_dict(result.scope),
        "notes": list(result.notes),
    }
