"""Recordings of py-spy as a page in one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.analysis.python_functions import SampledRecording
from stepscope.analysis.questions import question
from stepscope.report.answer.cells import headings
from stepscope.report.answer.tables import tables_of
from stepscope.report.outputs import Layout, Sink
from stepscope.report.page import blocks
from stepscope.report.page.document import page
from stepscope.report.samples.words import verdict_of
from stepscope.report.scope import describe_scope
from stepscope.report.text import sentence

_MOST_RECORDINGS = 20


def write(recordings: Sequence[SampledRecording], sink: Sink, _layout: Layout) -> None:
    """Write one page with all recordings."""
    sink.write(page(lambda rows: _content(recordings, rows)))


def _content(recordings: Sequence[SampledRecording], rows: int) -> dict[str, Any]:
    sections = [_recording(at, one, rows) for at, one in enumerate(recordings[:_MOST_RECORDINGS])]
    more = len(recordings) - len(sections)
    if more > 0:
        note = blocks.text(f"{more} more recordings: open them one by one.")
        sections.append(blocks.section("left-out", "What was left out", note))
    return {
        "title": "Python functions",
        "kind": "Report",
        "subtitle": "a recording of py-spy",
        "path": recordings[0].path if len(recordings) == 1 else f"{len(recordings)} recordings",
        "sections": sections,
    }


def _recording(number: int, recording: SampledRecording, rows: int) -> dict[str, Any]:
    asked = question("python-functions")
    words = verdict_of(recording.answer)
    tables = [
        blocks.table(asked.titles.get(name, name), frame, rows, labels=headings, shown=20)
        for name, frame in tables_of(recording.answer, asked).items()
    ]
    told = [describe_scope(recording.answer.scope), *recording.answer.notes]
    return blocks.section(
        f"recording-{number}",
        "Python functions" if number == 0 else recording.path,
        blocks.text(sentence(words), "verdict"),
        *tables,
        blocks.items(told),
    )
