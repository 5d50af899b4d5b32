"""Answers about a snapshot as a page in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.memory.questions.over_time import OverTime
from stepscope.memory.questions.table import MemoryAnswer
from stepscope.report.answer.cells import headings, shown
from stepscope.report.answer.tables import number_labels, numbers_of, tables_of, title_of
from stepscope.report.outputs import Layout, Sink
from stepscope.report.page import blocks
from stepscope.report.page.document import page
from stepscope.report.units import count, duration, size


def write(answer: MemoryAnswer, sink: Sink, _layout: Layout) -> None:
    """Write the page."""
    sink.write(page(lambda rows: _content(answer, rows)))


def _content(answer: MemoryAnswer, rows: int) -> dict[str, Any]:
    notes = blocks.items(list(answer.result.notes))
    sections = [
        over_time_section(answer),
        tables_section(answer, rows, answer.question.name.capitalize(), notes),
    ]
    return {
        "title": Path(answer.path).name,
        "kind": "Report",
        "subtitle": answer.kind.capitalize(),
        "path": answer.path,
        "sections": [one for one in sections if one["blocks"]],
    }


def over_time_section(answer: MemoryAnswer) -> dict[str, Any]:
    """Memory over time; without blocks where the answer does not bring it."""
    if answer.drawn is None:
        return blocks.section("over-time", "Memory over time")
    picture = blocks.memory(answer.drawn, _caption(answer.drawn))
    return blocks.section("over-time", "Memory over time", picture)


def tables_section(
    answer: MemoryAnswer, rows: int, title: str, notes: blocks.Block | None = None
) -> dict[str, Any]:
    """The numbers and tables of an answer."""
    asked = answer.question
    tables = [
        blocks.table(title_of(name, asked), frame, rows, labels=headings, shown=20)
        for name, frame in tables_of(answer.result, asked).items()
    ]
    labels = number_labels(answer.result)
    numbers = blocks.facts(
        [
            (labels[name], shown(name, value, answer.origin_ns))
            for name, value in numbers_of(answer.result).items()
            if value is not None
        ]
    )
    return blocks.section("answer", title, numbers, *tables, notes)


def _caption(drawn: OverTime) -> str:
    """What a reader must see in the picture."""
    of = f" of {drawn.device}" if drawn.device else ""
    when = _moment(drawn, drawn.peak.at)
    words = [f"The peak{of}: {size(drawn.peak.allocated_bytes)} held, {when}."]
    if drawn.reserved_bytes is not None:
        words.append(f"At most {size(max(drawn.reserved_bytes))} reserved.")
    if drawn.failures:
        last = _moment(drawn, drawn.failed[-1].at)
        begin = "One request" if drawn.failures == 1 else f"{count(drawn.failures)} requests"
        words.append(f"{begin} failed{', the last' if drawn.failures > 1 else ''} {last}.")
    width = f"{count(drawn.step)} events" if drawn.is_by_event else duration(drawn.step)
    if drawn.step > 1:
        words.append(f"Each point is the fullest moment of {width}.")
    return " ".join(words)


def _moment(drawn: OverTime, at: int) -> str:
    return f"at event {count(at)}" if drawn.is_by_event else f"{duration(at)} after the start"
