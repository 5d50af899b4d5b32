"""Answers to questions: numbers, tables that fit, the scope, and what is left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.selection.rows import tables_in
from stepscope.errors import UsageError
from stepscope.report.cells import is_moment, label, shown
from stepscope.report.columns import asked_columns, check_columns, first_columns, selected
from stepscope.report.document import (
    Block,
    DataTable,
    Facts,
    Gap,
    Heading,
    Items,
    Line,
    Note,
    Only,
    Page,
    Remark,
    Section,
    Title,
)
from stepscope.report.outputs import Layout
from stepscope.report.pictures import pictures_of
from stepscope.report.plain import plain, scope_to_dict
from stepscope.report.scope import describe_scope
from stepscope.run.figures import sentence

if TYPE_CHECKING:
    from stepscope.analysis.questions import Answers, Question
    from stepscope.memory.questions.table import MemoryQuestion

    Titled = Question | MemoryQuestion

NOTHING = "Nothing of this kind was recorded."
"""What stands for the tables of a result that has no row in any."""


def document(answers: Answers, layout: Layout) -> Iterator[Block]:
    """The answers one after the other, each as soon as it is ready."""
    for number, answer in enumerate(answers.answers):
        # What was misspelt is refused before anything is printed.
        chosen = chosen_tables(answer.result, answers.question, layout.table)
        check_columns(chosen, layout.columns)
        if number:
            yield Gap()
        title = Title(str(answer.path))
        yield title if answers.traces > 1 else Only("terminal", (title,))
        yield question_heading(answers.question)
        yield from answer_blocks(answer.result, answers.question, layout, answer.origin_ns)


def question_heading(question: Titled) -> Block:
    """What is answered; on a terminal, the command says so."""
    return Only("markdown", (Heading(f"{question.name}: {question.about}"),))


def answer_blocks(
    result: Any, question: Titled, layout: Layout, origin_ns: int = 0
) -> Iterator[Block]:
    """A result: its tables, scope and notes; see `table_blocks`."""
    yield from table_blocks(result, question, layout, origin_ns)
    yield Gap()
    yield Line(describe_scope(result.scope), "dim")
    for note in result.notes:
        yield Note(note)


def table_blocks(
    result: Any, question: Titled, layout: Layout, origin_ns: int = 0
) -> Iterator[Block]:
    """The numbers and tables of a result, without its scope.

    Args:
        layout: Which of its tables, columns and rows.
        origin_ns: Moments are relative to this.
    """
    chosen = chosen_tables(result, question, layout.table)
    check_columns(chosen, layout.columns)
    if (
        layout.table is None
        and layout.columns is None
        and (numbers := shown_numbers(result, chosen, origin_ns))
    ):
        yield Items(tuple(": ".join(pair) for pair in numbers))
    for name, frame in chosen.items():
        if frame.is_empty():
            continue
        if layout.columns is None:
            names = first_columns(frame, question.name, name)
        else:
            names = asked_columns(frame, layout.columns)
        if not names:
            continue
        yield Gap()
        yield DataTable(
            title_of(name, question),
            frame,
            names,
            is_asked=bool(layout.columns),
            most=layout.rows,
            origin_ns=origin_ns,
        )
    empty = without_rows(chosen, question)
    if empty is not None:
        yield Gap()
        yield Line(empty, "dim")


def page(answers: Answers, _rows: int) -> Page:
    """The answers with their pictures."""
    asked, each = answers.question, list(answers.answers)
    sections = []
    for number, one in enumerate(each):
        drawn = pictures_of(asked.name, one.result, one.origin_ns)
        below = (
            Line(describe_scope(one.result.scope), role="note"),
            *(Line(f"Note: {note}", role="note") for note in one.result.notes),
        )
        blocks = (*drawn, *page_blocks(one.result, asked, one.origin_ns), *below)
        heading = sentence(asked.about) if len(each) == 1 else str(one.path)
        sections.append(Section(f"answer-{number}", heading, blocks))
    path = str(each[0].path) if len(each) == 1 else ""
    kind = f"Answer to {asked.name}"
    title = asked.name if asked.over_ranks or not path else Path(path).name
    return Page(title, kind, path, tuple(sections))


def page_blocks(result: Any, question: Titled, origin_ns: int) -> Iterator[Block]:
    """The numbers and tables of a result, as a page shows them."""
    tables = tables_of(result, question)
    yield Facts(shown_numbers(result, tables, origin_ns))
    if tables and all(frame.is_empty() for frame in tables.values()):
        yield Line(NOTHING, role="note")
        return
    for name, frame in tables.items():
        yield DataTable(title_of(name, question), from_origin(frame, origin_ns), shown=20)


def from_origin(frame: pl.DataFrame, origin_ns: int) -> pl.DataFrame:
    """A table whose moments count from the origin, as a page shows them."""
    return frame.with_columns(
        pl.col(name) - origin_ns
        for name in frame.columns
        if is_moment(name) and frame[name].dtype.is_integer()
    )


def frames(answers: Answers, layout: Layout) -> Iterator[pl.DataFrame | Remark]:
    """The chosen table of each answer, or the first one."""
    for number, answer in enumerate(answers.answers):
        # The ranks of a job have one answer together.
        if answers.traces > 1 and number == 0 and not answers.question.over_ranks:
            yield Remark(f"{answers.traces} traces, one CSV after the other")
        yield chosen_frame(answer.result, answers.question, layout)


def chosen_frame(result: Any, question: Titled, layout: Layout) -> pl.DataFrame:
    """The table and columns of a result that a layout chooses; by default the first table."""
    frame = table_of(result, question, layout.table)
    check_columns({"": frame}, layout.columns)
    return selected(frame, layout.columns)


def to_json(answers: Answers) -> Any:
    """One object, or a list of objects for several answers."""
    documents = [
        {
            "question": answers.question.name,
            "path": answer.path,
            **result_to_dict(answer.result),
        }
        for answer in answers.answers
    ]
    return documents[0] if len(documents) == 1 else documents


def result_to_dict(result: Any) -> dict[str, Any]:
    """A result as plain values: numbers and tables by field, then scope and notes."""
    return {
        **values_of(result),
        "scope": scope_to_dict(result.scope),
        "notes": list(result.notes),
    }


def values_of(result: Any) -> dict[str, Any]:
    """The numbers and tables of a result as plain values."""
    return {name: plain(value) for name, value in (numbers_of(result) | tables_of(result)).items()}


def tables_of(result: Any, question: Titled | None = None) -> dict[str, pl.DataFrame]:
    """The tables of a result by field, in display order."""
    return tables_in(result, question.titles if question else {})


def table_of(result: Any, question: Titled, name: str | None = None) -> pl.DataFrame:
    """One table of a result; by default the first."""
    tables = tables_of(result, question)
    if name is None:
        name = next(iter(tables), None)
    if name is None or name not in tables:
        have = ", ".join(tables) or "none"
        raise UsageError(f"'{question.name}' has no table '{name}': it has {have}")
    return tables[name]


def shown_numbers(
    result: Any, tables: Mapping[str, pl.DataFrame], origin_ns: int
) -> tuple[tuple[str, str], ...]:
    """The numbers of a result that people are shown: each label, and what stands beside it.

    Where no table has a row, nothing was found to count, and zeros say nothing.
    """
    is_empty = bool(tables) and all(table.is_empty() for table in tables.values())
    labels = number_labels(result)
    return tuple(
        (labels[name], "none" if _is_nothing(name, value) else shown(name, value, origin_ns))
        for name, value in numbers_of(result).items()
        if value is not None and (value or not is_empty)
    )


def _is_nothing(name: str, value: Any) -> bool:
    return value == 0 and name.endswith(("_ns", "_bytes")) and not is_moment(name)


def title_of(field: str, question: Titled) -> str:
    """The title of a table of a result."""
    return question.titles.get(field, label(field))


def without_rows(tables: Mapping[str, pl.DataFrame], question: Titled) -> str | None:
    """A line that names the tables without rows; None if there are none."""
    if tables and all(table.is_empty() for table in tables.values()):
        return NOTHING
    empty = [title_of(field, question) for field, table in tables.items() if table.is_empty()]
    return f"No rows: {'; '.join(empty)}" if empty else None


def chosen_tables(result: Any, question: Titled, name: str | None) -> dict[str, pl.DataFrame]:
    """All tables of a result, or the chosen one."""
    if name is None:
        return tables_of(result, question)
    return {name: table_of(result, question, name)}


def number_labels(result: Any) -> dict[str, str]:
    """What people read beside the numbers of a result, by field.

    A number stands alone, so the name of its field may not be enough; it then has a `label`. It has
    its unit beside it, also a share.
    """
    return {
        field.name: field.metadata.get("label", label(field.name).removesuffix(" %"))
        for field in dataclasses.fields(result)
    }


def numbers_of(result: Any) -> dict[str, Any]:
    """The fields of a result other than tables, scope and notes."""
    return {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if field.name not in {"scope", "notes"}
        and field.metadata.get("show", True)
        and not isinstance(getattr(result, field.name), pl.DataFrame)
    }
