"""What a page is made of: sections of blocks, as plain values that `static/report.js` draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from stepscope.advice.drawn_step import TypicalStep
from stepscope.analysis.selection.partition import all_cause_words
from stepscope.analysis.selection.rows import Beginning
from stepscope.memory.questions.over_time import OverTime
from stepscope.report.page.step_groups import StepGroups

Block = Mapping[str, Any]


def section(identity: str, title: str, *blocks: Block | None) -> dict[str, Any]:
    """A section; blocks that are None are left out.

    Args:
        identity: Its name in links to it.
        title: Its heading.
        blocks: Its content.
    """
    return {"id": identity, "title": title, "blocks": [one for one in blocks if one is not None]}


def text(words: str, kind: str = "") -> Block:
    """A paragraph; a kind is "note", "verdict" or "lead"."""
    return {"is": "text", "text": words, "kind": kind}


def items(words: Sequence[str]) -> Block | None:
    """A list of sentences; None if there are none."""
    return {"is": "items", "items": list(words)} if words else None


def facts(pairs: Sequence[tuple[str, str]]) -> Block | None:
    """Labels with their texts; empty ones are left out."""
    kept = [[label, words] for label, words in pairs if words]
    return {"is": "facts", "facts": kept} if kept else None


def numbers(pairs: Sequence[tuple[str, str]]) -> Block | None:
    """The few numbers that matter most, large: label and text."""
    return {"is": "numbers", "numbers": [list(pair) for pair in pairs]} if pairs else None


def bar(parts: Sequence[tuple[str, int]], total_ns: int, steps: int) -> Block:
    """A whole divided into parts.

    Args:
        parts: Name and nanoseconds of each, over all steps; they add up to the whole.
        total_ns: The whole.
        steps: Number of steps, by which the reader sees them divided.
    """
    named = [{"name": name, "total_ns": total} for name, total in parts]
    return {"is": "bar", "parts": named, "total_ns": total_ns, "steps": steps}


def history(groups: Sequence[StepGroups]) -> Block | None:
    """Durations of steps in order, of one run or of two; None without steps."""
    drawn = [one.to_dict() for one in groups]
    return {"is": "history", "runs": drawn} if any(one["first"] for one in drawn) else None


def mini_timeline(step: TypicalStep) -> Block:
    """One step as lanes of slices: static, so that it prints as it is."""
    return {
        "is": "mini_timeline",
        "dur_ns": step.dur_ns,
        "lanes": [
            {
                "title": lane.title,
                "slices": [[one.start_ns, one.dur_ns, one.name, one.what] for one in lane.slices],
                "rest": list(lane.rest),
                "rest_what": lane.rest_what,
                "others": lane.others,
            }
            for lane in step.lanes
        ],
    }


def memory(drawn: OverTime, caption: str) -> Block:
    """Memory over time.

    Args:
        drawn: The memory.
        caption: What a reader must see in it.
    """
    return {
        "is": "memory",
        "caption": caption,
        "is_by_event": drawn.is_by_event,
        "start": drawn.start,
        "step": drawn.step,
        "allocated": list(drawn.allocated_bytes),
        "reserved": None if drawn.reserved_bytes is None else list(drawn.reserved_bytes),
        "bands": [{"name": name, "bytes": list(values)} for name, values in drawn.bands],
        "steps": [list(one) for one in drawn.steps],
        "peak": [drawn.peak.at, drawn.peak.allocated_bytes],
        "failed": [[one.at, one.allocated_bytes] for one in drawn.failed],
    }


def waterfall(titles: tuple[str, str], parts: Sequence[tuple[str, int, int]]) -> Block:
    """From one total to another.

    Args:
        titles: What the totals are.
        parts: Name, and nanoseconds before and after: each side adds up to its total.
    """
    named = [{"name": name, "a_ns": before, "b_ns": after} for name, before, after in parts]
    return {"is": "waterfall", "titles": list(titles), "parts": named}


def ladder(rungs: Sequence[tuple[str, int, str, str]]) -> Block | None:
    """The step after each fix: its name, the step, what limits it then, and that in words."""
    if not rungs:
        return None
    keys = ("name", "step_ns", "limit", "words")
    return {"is": "ladder", "rungs": [dict(zip(keys, one, strict=True)) for one in rungs]}


def findings(found: Sequence[Mapping[str, Any]]) -> Block:
    """Findings: see `diagnosis.html`."""
    return {"is": "findings", "findings": list(found)}


def table(
    title: str,
    frame: pl.DataFrame,
    rows: int,
    *,
    labels: Callable[[Sequence[str]], Mapping[str, str]],
    note: str = "",
    shown: int = 12,
) -> Block | None:
    """A table that sorts and filters; columns in which no row has a value are left out.

    Args:
        title: Its heading.
        frame: Its rows; names of columns tell the units, as in `report.answer.cells`.
        rows: Maximum number of rows.
        labels: Gives the headings of columns.
        note: What the reader must know of it.
        shown: How many rows show at first.

    Returns:
        None without rows.
    """
    beginning = Beginning.of(frame, rows)
    return table_beginning(title, beginning, rows, labels=labels, note=note, shown=shown)


def table_beginning(
    title: str,
    beginning: Beginning,
    rows: int,
    *,
    labels: Callable[[Sequence[str]], Mapping[str, str]],
    note: str = "",
    shown: int = 12,
) -> Block | None:
    """The same of a table of which only the first rows are at hand; see `table`."""
    if not beginning.total:
        return None
    names = beginning.rows.columns
    named = labels(names)
    columns = [
        {"name": name, "label": named[name], "number": name in beginning.numeric} for name in names
    ]
    values = [
        all_cause_words(column) if name == "cause" else column
        for name, column in zip(names, beginning.rows.values, strict=True)
    ]
    return {
        "is": "table",
        "title": title,
        "note": note,
        "shown": shown,
        "columns": columns,
        "rows": [list(row) for row in zip(*values, strict=True)][:rows],
        "total": beginning.total,
    }
