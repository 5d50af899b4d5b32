"""Answers as GitHub Markdown, with numbers in convenient units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope.analysis.questions import Answers
from stepscope.report.answer.cells import headings, shown
from stepscope.report.answer.columns import check_columns, selected
from stepscope.report.answer.tables import (
    Titled,
    chosen_tables,
    number_labels,
    shown_numbers,
    title_of,
    without_rows,
)
from stepscope.report.outputs import Layout, Sink
from stepscope.report.scope import describe_scope
from stepscope.report.text import markdown_text


def write(answers: Answers, sink: Sink, layout: Layout) -> None:
    """Write the answers; several ones each below the name of their trace."""
    for answer in answers.answers:
        if answers.traces > 1:
            sink.write(f"# {markdown_text(str(answer.path))}\n\n")
        text = result_to_markdown(
            answer.result,
            answers.question,
            origin_ns=answer.origin_ns,
            rows=layout.rows,
            table=layout.table,
            columns=layout.columns,
        )
        sink.write(f"{text}\n")


def result_to_markdown(
    result: Any,
    question: Titled,
    *,
    origin_ns: int = 0,
    rows: int | None = None,
    table: str | None = None,
    columns: Sequence[str] | None = None,
) -> str:
    """A result as Markdown.

    Args:
        result: The result.
        question: What it answers.
        origin_ns: Moments are relative to this.
        rows: Maximum number of rows of each table; None: all.
        table: Only the table of this field.
        columns: Only these columns; None: all.

    Raises:
        UsageError: The result has no such table.
    """
    lines = tables_to_markdown(
        result, question, origin_ns=origin_ns, rows=rows, table=table, columns=columns
    )
    lines += ["", markdown_text(describe_scope(result.scope)), *notes_to_markdown(result)]
    return "\n".join(lines) + "\n"


def tables_to_markdown(
    result: Any,
    question: Titled,
    *,
    origin_ns: int = 0,
    rows: int | None = None,
    table: str | None = None,
    columns: Sequence[str] | None = None,
) -> list[str]:
    """The lines of the numbers and tables of a result; see `result_to_markdown`."""
    lines = [f"## {question.name}: {question.about}", ""]
    chosen = chosen_tables(result, question, table)
    if table is None and columns is None:
        numbers = shown_numbers(result, chosen)
        labels = number_labels(result)
        lines += [
            f"- {markdown_text(labels[name])}: {markdown_text(shown(name, value, origin_ns))}"
            for name, value in numbers.items()
        ]
    check_columns(chosen, columns)
    for name, whole in chosen.items():
        if whole.is_empty():
            continue
        frame = selected(whole, columns)
        if not frame.columns:
            continue
        lines += ["", f"### {title_of(name, question)}", ""]
        names = frame.columns
        labels = headings(whole.columns)
        lines.append("| " + " | ".join(markdown_text(labels[c]) for c in names) + " |")
        sides = ("---:" if kind.is_numeric() else "---" for kind in frame.dtypes)
        lines.append("|" + "|".join(sides) + "|")
        lines += [
            "| "
            + " | ".join(
                markdown_text(shown(column, item, origin_ns))
                for column, item in zip(names, row, strict=True)
            )
            + " |"
            for row in (frame.head(rows) if rows else frame).iter_rows()
        ]
        if rows and len(frame) > rows:
            lines += ["", f"and {len(frame) - rows:,} more rows"]
    empty = without_rows(chosen, question)
    if empty is not None:
        lines += ["", markdown_text(empty)]
    return lines


def notes_to_markdown(result: Any) -> list[str]:
    """The lines of the notes of a result."""
    return [f"\n> {markdown_text(note)}" for note in result.notes]
