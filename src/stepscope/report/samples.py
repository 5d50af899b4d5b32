"""Recordings of py-spy: one sentence, then functions and threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.analysis.questions import question
from stepscope.report.answer import (
    answer_blocks,
    chosen_frame,
    question_heading,
    result_to_dict,
    tables_of,
)
from stepscope.report.document import (
    Block,
    DataTable,
    Items,
    Labelled,
    Line,
    Page,
    Remark,
    Section,
    Title,
)
from stepscope.report.outputs import Layout
from stepscope.report.scope import describe_scope
from stepscope.report.units import duration, percent
from stepscope.run.figures import sentence

if TYPE_CHECKING:
    import polars as pl

    from stepscope.analysis.python_functions import PythonFunctions, SampledRecording

_QUESTION = "python-functions"
_IMPORT = ("_find_and_load", "<frozen importlib._bootstrap>")
"""The function and the place that every import passes."""
_MUCH_IMPORTING = 0.25
_MOST_ROWS = 30
_MOST_RECORDINGS = 20


def document(recordings: Sequence[SampledRecording], _layout: Layout) -> Iterator[Block]:
    """The recordings one after the other."""
    for recording in recordings:
        yield Title(recording.path)
        yield Labelled("Verdict", (Line(_verdict(recording.answer)),))
        yield question_heading(question(_QUESTION))
        yield from answer_blocks(recording.answer, question(_QUESTION), Layout(rows=_MOST_ROWS))


def _verdict(answer: PythonFunctions) -> str:
    if answer.threads.is_empty():
        return "no Python function was recorded"
    thread = answer.threads.row(0, named=True)
    if thread["most_in_share"] is None:
        return "the Python functions that were recorded took no time"
    who = thread["thread"]
    who = f"thread {who}" if who.isdecimal() else who
    if thread["process"] is not None:
        who += f" of process {thread['process']}"
    text = (
        f"{who} spent {percent(thread['most_in_share'])} of {duration(thread['covered_ns'])} "
        f"in {thread['most_in']}"
    )
    shares = answer.functions.filter(function=_IMPORT[0], place=_IMPORT[1])["total_share"]
    imports = float(shares.sum())
    if imports >= _MUCH_IMPORTING:
        text += (
            f"; {percent(imports)} of the time went into imports: "
            "record longer, or attach to the training while it runs"
        )
    return text


def page(recordings: Sequence[SampledRecording], _rows: int) -> Page:
    """One page with all recordings."""
    sections = [_section(at, one) for at, one in enumerate(recordings[:_MOST_RECORDINGS])]
    more = len(recordings) - len(sections)
    if more > 0:
        note = Line(f"{more} more recordings: open them one by one.")
        sections.append(Section("left-out", "What was left out", (note,)))
    path = recordings[0].path if len(recordings) == 1 else f"{len(recordings)} recordings"
    return Page("Python functions", "a recording of py-spy", path, sections)


def _section(number: int, recording: SampledRecording) -> Section:
    asked = question(_QUESTION)
    tables = (
        DataTable(asked.titles.get(name, name), frame, shown=20)
        for name, frame in tables_of(recording.answer, asked).items()
    )
    return Section(
        f"recording-{number}",
        "Python functions" if number == 0 else recording.path,
        (
            Line(sentence(_verdict(recording.answer)), role="verdict"),
            *tables,
            Items((describe_scope(recording.answer.scope), *recording.answer.notes)),
        ),
    )


def frames(
    recordings: Sequence[SampledRecording], layout: Layout
) -> Iterator[pl.DataFrame | Remark]:
    """The functions of each recording."""
    if len(recordings) > 1:
        yield Remark(f"{len(recordings)} recordings, one CSV after the other")
    for recording in recordings:
        yield chosen_frame(recording.answer, question(_QUESTION), layout)


def to_json(recordings: Sequence[SampledRecording]) -> Any:
    """One object, or a list of objects for several recordings."""
    documents = [
        {"path": one.path, "verdict": _verdict(one.answer), **result_to_dict(one.answer)}
        for one in recordings
    ]
    return documents[0] if len(documents) == 1 else documents
