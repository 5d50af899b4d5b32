"""Any result of an analysis as tables: on a terminal, as Markdown, CSV, or JSON.

A reporter knows nothing of single questions: columns tell their unit by the end of their name.
Where a person reads, times and sizes get the unit that a person would choose, moments are given
from the first event of the trace on, and long tables are cut with a word about the rest. Where a
program reads, everything is complete, and times are integer nanoseconds.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.selection.scope import AnsweredScope
from stepscope.errors import UsageError
from stepscope.report import units

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.report.answer.questions import Question

MOST_ROWS = 30
_WIDEST_NAME = 56
_COLUMN_GAP = 3
_NOISE = re.compile(r"^void |\(anonymous namespace\)::|at::native::|at::cuda::")
_FLOPS = re.compile(r"(^|_)flops(_per_s)?$")
_SUFFIXES: tuple[tuple[str, Callable[[Any], str]], ...] = (
    ("_ns", units.duration),
    ("_bytes", units.size),
    ("_share", units.share),
)
_IDENTITIES = frozenset(
    {"event", "step", "device", "stream", "rank", "launch", "op", "ended_by", "lane_id", "gap"}
)
"""Numbers that are names: written without separators."""


def tables_of(result: Any, question: Question | None = None) -> dict[str, pl.DataFrame]:
    """The tables of a result by field, in the order in which they are shown."""
    found = {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if isinstance(getattr(result, field.name), pl.DataFrame)
        and field.metadata.get("show", True)
    }
    order = [name for name in (question.titles if question else {}) if name in found]
    return {name: found[name] for name in (*order, *(n for n in found if n not in order))}


def numbers_of(result: Any) -> dict[str, Any]:
    """What a result says outside its tables, its scope and its notes."""
    return {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if field.name not in {"scope", "notes"}
        and field.metadata.get("show", True)
        and not isinstance(getattr(result, field.name), pl.DataFrame)
    }


def result_to_dict(result: Any) -> dict[str, Any]:
    """A result as plain values: numbers and tables by field, then scope and notes."""
    return {
        **{name: plain(value) for name, value in numbers_of(result).items()},
        **{name: plain(table) for name, table in tables_of(result).items()},
        "scope": scope_to_dict(result.scope),
        "notes": list(result.notes),
    }


def scope_to_dict(scope: AnsweredScope) -> dict[str, Any]:
    """What an answer covers: `steps` null where it is about the whole file."""
    asked = scope.asked
    return {
        "steps": None if asked.steps is None else list(scope.steps),
        "devices": list(scope.devices),
        "events": asked.events.value,
        "counted": scope.events,
        "excluded": dict(scope.excluded),
    }


def plain(value: Any) -> Any:
    """A value that JSON can hold; what is no number (NaN, infinity) becomes null."""
    if isinstance(value, pl.DataFrame):
        return [
            {name: plain(item) for name, item in row.items()} for row in value.iter_rows(named=True)
        ]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def result_to_csv(result: Any, question: Question, table: str | None = None) -> str:
    """One table as CSV, with a row of column names.

    Args:
        result: The result.
        question: What it answers.
        table: Field of the table; by default the first one.

    Raises:
        UsageError: The result has no such table.
    """
    tables = tables_of(result, question)
    if table is None:
        table = next(iter(tables), None)
    if table is None or table not in tables:
        have = ", ".join(tables) or "none"
        raise UsageError(f"'{question.name}' has no table '{table}': it has {have}")
    return frame_to_csv(tables[table])


def frame_to_csv(frame: pl.DataFrame) -> str:
    """A table as CSV, with a row of column names; lists as JSON, numbers to the last digit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(frame.columns)
    writer.writerows([_csv_cell(item) for item in row] for row in frame.iter_rows())
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, (list, tuple, dict)):
        import orjson

        return orjson.dumps(plain(value)).decode()
    return value


def print_result(
    result: Any,
    question: Question,
    console: Console,
    *,
    origin_ns: int = 0,
    rows: int | None = MOST_ROWS,
    table: str | None = None,
) -> None:
    """Print a result for a person.

    Args:
        result: The result.
        question: What it answers.
        console: Where.
        origin_ns: Moments are printed from here on.
        rows: At most so many rows of each table; None: all.
        table: Only the table of this field.
    """
    from rich.padding import Padding
    from rich.text import Text

    if table is None:
        for name, value in numbers_of(result).items():
            if value is not None:
                console.print(Text(f"{label(name)}: {shown(name, value, origin_ns)}"))
    for name, frame in _chosen(result, question, table).items():
        console.print()
        title = question.titles.get(name, label(name))
        console.print(Text(f"{title} ({len(frame):,})" if len(frame) > 1 else title, "bold"))
        if frame.is_empty():
            console.print(Padding(Text("none", "dim"), (0, 0, 0, 2)))
            continue
        for part in _rich_tables(frame.head(rows) if rows else frame, origin_ns, console.width):
            console.print(part)
        if rows and len(frame) > rows:
            left = f"and {len(frame) - rows:,} more: --rows all, or --format json"
            console.print(Padding(Text(left, "dim"), (0, 0, 0, 2)))
    console.print()
    console.print(Text(describe_scope(result.scope), "dim"))
    for note in result.notes:
        console.print(Text(f"Note: {note}", "yellow"))


def result_to_markdown(
    result: Any,
    question: Question,
    *,
    origin_ns: int = 0,
    rows: int | None = MOST_ROWS,
    table: str | None = None,
) -> str:
    """A result as GitHub's Markdown, with the numbers as a person reads them."""
    lines = [f"## {question.name}: {question.about}", ""]
    if table is None:
        numbers = {k: v for k, v in numbers_of(result).items() if v is not None}
        lines += [
            f"- {markdown_text(label(name))}: {markdown_text(shown(name, value, origin_ns))}"
            for name, value in numbers.items()
        ]
    for name, frame in _chosen(result, question, table).items():
        lines += ["", f"### {question.titles.get(name, label(name))}", ""]
        columns = frame.columns
        labels = headings(columns)
        lines.append("| " + " | ".join(markdown_text(labels[c]) for c in columns) + " |")
        lines.append(
            "|" + "|".join("---:" if _is_number(frame[c]) else "---" for c in columns) + "|"
        )
        lines += [
            "| "
            + " | ".join(
                markdown_text(shown(column, item, origin_ns))
                for column, item in zip(columns, row, strict=True)
            )
            + " |"
            for row in (frame.head(rows) if rows else frame).iter_rows()
        ]
        if rows and len(frame) > rows:
            lines += ["", f"and {len(frame) - rows:,} more rows"]
    lines += ["", markdown_text(describe_scope(result.scope))]
    lines += [f"\n> {markdown_text(note)}" for note in result.notes]
    return "\n".join(lines) + "\n"


def _chosen(result: Any, question: Question, table: str | None) -> dict[str, pl.DataFrame]:
    tables = tables_of(result, question)
    if table is None:
        return tables
    if table not in tables:
        have = ", ".join(tables) or "none"
        raise UsageError(f"'{question.name}' has no table '{table}': it has {have}")
    return {table: tables[table]}


def describe_scope(scope: AnsweredScope) -> str:
    """The scope in one line."""
    asked = scope.asked
    if asked.steps is None:
        where = "the whole file" + (f", {_steps(scope.steps)}" if scope.steps else "")
    else:
        where = _steps(scope.steps)
    parts = [f"Scope: {where}"]
    if scope.devices:
        word = "device" if len(scope.devices) == 1 else "devices"
        parts.append(f"{word} {', '.join(map(str, scope.devices))}")
    if scope.devices or scope.events:
        parts.append(f"{asked.events.value} events ({scope.events:,} counted)")
    parts += [f"left out: {count:,} {reason}" for reason, count in scope.excluded.items()]
    return "; ".join(parts)


def _steps(steps: tuple[int, ...]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    # Numbers come from files: what lies between two of them may be any number of steps.
    breaks = [at for at in range(1, len(steps)) if steps[at] != steps[at - 1] + 1]
    runs = [(steps[a], steps[b - 1]) for a, b in pairwise([0, *breaks, len(steps)])]
    words = [
        f"{first} to {last}" if last > first + 1 else ", ".join(map(str, sorted({first, last})))
        for first, last in runs
    ]
    return f"steps {', '.join(words)}"


def label(name: str) -> str:
    """A column's name without its unit: "exposed_comm_ns" reads "exposed comm"."""
    if _FLOPS.search(name):
        name = name.removesuffix("_per_s")
    for suffix, _ in _SUFFIXES:
        if name.endswith(suffix) and name != suffix[1:]:
            name = name.removesuffix(suffix) + ("" if suffix != "_share" else " %")
            break
    return name.replace("_", " ").strip()


def headings(columns: Sequence[str]) -> dict[str, str]:
    """The label of each column; times that would be called as another column say what they are."""
    labels = {name: label(name) for name in columns}
    taken = list(labels.values())
    return {
        name: f"{text} time" if name.endswith("_ns") and taken.count(text) > 1 else text
        for name, text in labels.items()
    }


def shown(name: str, value: Any, origin_ns: int = 0) -> str:
    """A cell as a person reads it; the column's name tells the unit."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, (list, tuple)):
        return ", ".join(shown("", item) for item in value) if value else "–"
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(str(key), item)}" for key, item in value.items())
    if not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "–"
    if _is_moment(name):
        return f"+{units.duration(value - origin_ns)}" if value >= origin_ns else str(value)
    for suffix, write in _SUFFIXES:
        if name.endswith(suffix) or name == suffix[1:]:
            return write(value)
    if _FLOPS.search(name):
        return units.flops(value) + ("/s" if name.endswith("_per_s") else "")
    if name in _IDENTITIES or name.endswith("_id"):
        return str(value)
    return units.count(value)


def _is_moment(name: str) -> bool:
    return name in {"start_ns", "end_ns", "time_ns"} or name.endswith(
        ("_start_ns", "_end_ns", "_time_ns")
    )


def _is_number(column: pl.Series) -> bool:
    return column.dtype.is_numeric()


def _rich_tables(frame: pl.DataFrame, origin_ns: int, width: int) -> list[Any]:
    """The rows as one table, or as several below each other where the columns do not fit."""
    labels = headings(frame.columns)
    cells = {
        name: [_cell(name, item, origin_ns) for item in frame[name].to_list()]
        for name in frame.columns
    }
    widths = {
        name: max(len(labels[name]), *(len(text) for text in column)) + _COLUMN_GAP
        for name, column in cells.items()
    }
    keys = [name for name in frame.columns[:2] if name in _IDENTITIES] or frame.columns[:1]
    blocks = [list(keys)]
    for name in frame.columns:
        if name in keys:
            continue
        if sum(widths[one] for one in (*blocks[-1], name)) > width and len(blocks[-1]) > len(keys):
            blocks.append(list(keys))
        blocks[-1].append(name)
    return [_rich_table(frame, {name: labels[name] for name in b}, cells) for b in blocks]


def _rich_table(frame: pl.DataFrame, columns: dict[str, str], cells: dict[str, list[str]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, text in columns.items():
        side = "right" if _is_number(frame[name]) else "left"
        table.add_column(Text(text), justify=side, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for row in zip(*(cells[name] for name in columns), strict=True):
        # Text, not markup: names come from strangers' files.
        table.add_row(*(Text(cell) for cell in row))
    return table


def _cell(name: str, value: Any, origin_ns: int) -> str:
    """A cell of a terminal's table: one line, and not too long."""
    text = printable(shown(name, value, origin_ns))
    if len(text) > _WIDEST_NAME:
        # What nearly all kernels of torch begin with says nothing.
        text = _NOISE.sub("", text)
    return text if len(text) <= _WIDEST_NAME else f"{text[: _WIDEST_NAME - 1]}…"


def printable(text: str) -> str:
    """Without control characters, which could steer a terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)


def markdown_text(text: str) -> str:
    """Text that Markdown takes for text."""
    clean = printable(text)
    for character in "\\`*_{}[]<>|#":
        clean = clean.replace(character, f"\\{character}")
    return clean
