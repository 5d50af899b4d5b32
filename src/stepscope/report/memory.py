"""Answers to questions about a memory snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.report import answer, figures
from stepscope.report.document import (
    Block,
    Items,
    Line,
    Note,
    Page,
    Section,
)
from stepscope.report.pictures import pictures_of
from stepscope.report.units import count, duration, size

if TYPE_CHECKING:
    import polars as pl

    from stepscope.memory.questions.over_time import OverTime
    from stepscope.memory.questions.table import MemoryAnswer, MemoryQuestion
    from stepscope.report.outputs import Layout


def document(answered: MemoryAnswer, layout: Layout) -> Iterator[Block]:
    """The answer."""
    yield Line(f"{answered.path}  ·  {answered.kind}  ·  {answered.question.name}", "dim")
    yield answer.question_heading(answered.question)
    yield from answer.table_blocks(
        answered.result, question_of(answered), layout, answered.origin_ns
    )
    for note in answered.result.notes:
        yield Note(note)


def question_of(answered: MemoryAnswer) -> MemoryQuestion:
    """The question as columns and pictures name it: one about traces may have its name.

    Where no history was recorded, what the overview has of the peak is of the dump.
    """
    asked, titles = answered.question, answered.question.titles
    if not getattr(answered.result, "has_history", True):  # an overview's
        titles = {name: title.replace("peak", "dump") for name, title in titles.items()}
    return replace(asked, name=f"memory-{asked.name}", titles=titles)


def page(answered: MemoryAnswer, _rows: int) -> Page:
    """Memory over time, and the answer."""
    notes = Items(answered.result.notes)
    sections = (
        over_time_section(answered),
        tables_section(answered, answered.question.name.capitalize(), notes),
    )
    return Page(Path(answered.path).name, answered.kind.capitalize(), answered.path, sections)


def over_time_section(answered: MemoryAnswer) -> Section:
    """Memory over time; without blocks where the answer does not bring it."""
    drawn = answered.drawn
    if drawn is None:
        return Section("over-time", "Memory over time")
    picture = figures.memory_curve(
        _caption(drawn),
        drawn.allocated_bytes,
        drawn.reserved_bytes,
        start=drawn.start,
        step=drawn.step,
        peak=(drawn.peak.at, drawn.peak.allocated_bytes),
        is_by_event=drawn.is_by_event,
        lines=drawn.lines,
        bands=[{"name": name, "bytes": list(values)} for name, values in drawn.bands],
        steps=[list(one) for one in drawn.steps],
        failed=[[one.at, one.allocated_bytes] for one in drawn.failed],
    )
    return Section("over-time", "Memory over time", (picture,))


def tables_section(answered: MemoryAnswer, title: str, notes: Items | None = None) -> Section:
    """The pictures, numbers and tables of an answer."""
    drawn = pictures_of(question_of(answered).name, answered.result, answered.origin_ns)
    blocks = answer.page_blocks(answered.result, answered.question, answered.origin_ns)
    return Section("answer", title, (*drawn, *blocks, notes))


def _caption(drawn: OverTime) -> str:
    of = f" of {drawn.device}" if drawn.device else ""
    when = _moment(drawn, drawn.peak.at)
    parts = [f"The peak{of}: {size(drawn.peak.allocated_bytes)} held, {when}."]
    if drawn.reserved_bytes is not None:
        parts.append(f"At most {size(max(drawn.reserved_bytes))} reserved.")
    if drawn.failures:
        last = _moment(drawn, drawn.failed[-1].at)
        begin = "One request" if drawn.failures == 1 else f"{count(drawn.failures)} requests"
        parts.append(f"{begin} failed{', the last' if drawn.failures > 1 else ''} {last}.")
    width = f"{count(drawn.step)} events" if drawn.is_by_event else duration(drawn.step)
    if drawn.step > 1:
        parts.append(f"Each point is the fullest moment of {width}.")
    return " ".join(parts)


def _moment(drawn: OverTime, at: int) -> str:
    return f"at event {count(at)}" if drawn.is_by_event else f"{duration(at)} after the start"


def frames(answered: MemoryAnswer, layout: Layout) -> Iterator[pl.DataFrame]:
    """The chosen table, or the first one."""
    yield answer.chosen_frame(answered.result, answered.question, layout)


def to_json(answered: MemoryAnswer) -> dict[str, Any]:
    """One object: the question, the numbers and tables by field, and the notes."""
    return {
        "kind": answered.kind,
        "question": answered.question.name,
        "path": answered.path,
        **answer.values_of(answered.result),
        "notes": list(answered.result.notes),
    }
