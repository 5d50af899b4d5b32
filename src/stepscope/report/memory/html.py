"""Answers about a snapshot as a page in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.memory.questions.table import MemoryAnswer
from stepscope.report.answer.cells import headings, shown
from stepscope.report.answer.tables import number_labels, numbers_of, tables_of, title_of
from stepscope.report.outputs import Layout, Sink
from stepscope.report.page import blocks
from stepscope.report.page.document import page


def write(answer: MemoryAnswer, sink: Sink, _layout: Layout) -> None:
    """Write the page."""
    sink.write(page(lambda rows: _content(answer, rows)))


def _content(answer: MemoryAnswer, rows: int) -> dict[str, Any]:
    asked = answer.question
    tables = [
        blocks.table(title_of(name, asked), frame, rows, labels=headings, shown=20)
        for name, frame in tables_of(answer.result, asked).items()
    ]
    labels = number_labels(answer.result)
    notes = blocks.items(list(answer.result.notes))
    numbers = blocks.facts(
        [
            (labels[name], shown(name, value, answer.origin_ns))
            for name, value in numbers_of(answer.result).items()
            if value is not None
        ]
    )
    sections = [blocks.section("answer", asked.name.capitalize(), numbers, *tables, notes)]
    return {
        "title": Path(answer.path).name,
        "kind": "Report",
        "subtitle": answer.kind.capitalize(),
        "path": answer.path,
        "sections": sections,
    }
