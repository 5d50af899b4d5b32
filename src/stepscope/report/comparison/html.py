"""A comparison as a page in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.comparison.compare import PART, THREAD_PART, Comparison
from stepscope.fleet.scaling import Scaling
from stepscope.report import units
from stepscope.report.comparison.result import CheckedComparison
from stepscope.report.comparison.words import (
    TITLES,
    chosen_rows,
    headline,
    in_words,
    scopes,
    steps_of,
    warnings,
)
from stepscope.report.outputs import Layout, Sink
from stepscope.report.page import blocks
from stepscope.report.page.document import page
from stepscope.report.page.step_groups import StepGroups
from stepscope.report.text import sentence

_LABELS = {
    "name": "name",
    "status": "status",
    "a_ns": "before",
    "b_ns": "after",
    "delta_ns": "change",
    "noise_ns": "noise",
    "a_count": "count before",
    "b_count": "count after",
}


def write(checked: CheckedComparison, sink: Sink, _layout: Layout) -> None:
    """Write the page."""
    sink.write(comparison_to_html(checked))


def comparison_to_html(checked: CheckedComparison) -> str:
    """The page."""
    return page(lambda rows: _content(checked, rows))


def _content(checked: CheckedComparison, rows: int) -> dict[str, Any]:
    comparison = checked.comparison
    sections = [
        _verdict(checked),
        _parts(comparison),
        _scaling(checked.scaling, rows),
        _steps(comparison),
        *(_table(comparison, table, rows) for table in TITLES),
        _left_out(comparison, rows),
    ]
    return {
        "title": f"{Path(comparison.a.path).name} → {Path(comparison.b.path).name}",
        "kind": "Comparison",
        "subtitle": "What changed, and whether it is more than noise",
        "path": "",
        "sections": [one for one in sections if one["blocks"]],
    }


def _scaling(scaling: Scaling | None, rows: int) -> dict[str, Any]:
    """How the second side scales, where it has another number of ranks."""
    if scaling is None:
        return blocks.section("scaling", "Scaling")

    def labels(columns: Sequence[str]) -> Mapping[str, str]:
        return {name: name.removesuffix("_ns").replace("_", " ") for name in columns}

    return blocks.section(
        "scaling",
        "Scaling",
        blocks.text(sentence(scaling.verdict)),
        blocks.table("What grew", scaling.growth, rows, labels=labels),
        blocks.table("Ranks", scaling.ranks, rows, labels=labels),
        blocks.items(scaling.notes),
    )


def _verdict(checked: CheckedComparison) -> dict[str, Any]:
    comparison = checked.comparison
    words = headline(comparison)
    return blocks.section(
        "verdict",
        "Verdict",
        blocks.text(sentence(words), "verdict"),
        *(
            blocks.text(f"{check.outcome.capitalize()}: {check.reason}", "lead")
            for check in checked.checks
        ),
        blocks.facts(
            [
                (word, f"{side.path}, {steps_of(side)}")
                for word, side in (("before", comparison.a), ("after", comparison.b))
            ]
        ),
        blocks.items(warnings(comparison)),
    )


def _parts(comparison: Comparison) -> dict[str, Any]:
    """From the one mean step to the other: the bars add up to the difference."""
    found = comparison.changes.filter(pl.col("table") == PART)
    if found.is_empty():
        return blocks.section("parts", "From one step to the other")
    before, after = int(found["a_ns"].sum()), int(found["b_ns"].sum())
    return blocks.section(
        "parts",
        "From one step to the other",
        blocks.waterfall(
            ("before", "after"), list(found.select("name", "a_ns", "b_ns").iter_rows())
        ),
        blocks.text(
            f"Mean step ({comparison.a.parts_basis}): {units.duration(before)} before, "
            f"{units.duration(after)} after. The bars between add up to the difference exactly; "
            "red grew, blue shrank. The verdict compares medians instead, which single slow steps "
            "do not move.",
            "note",
        ),
    )


def _steps(comparison: Comparison) -> dict[str, Any]:
    groups = [
        StepGroups.of(word, side.steps, side.step_ns.tolist())
        for word, side in (("before", comparison.a), ("after", comparison.b))
    ]
    if max(len(one.first) for one in groups) < 2:
        return blocks.section("steps", "Steps")
    return blocks.section("steps", "Steps", blocks.history(groups))


def _table(comparison: Comparison, table: str, rows: int) -> dict[str, Any]:
    columns = [
        name for name in _LABELS if table not in (PART, THREAD_PART) or not name.endswith("_count")
    ]
    found = in_words(chosen_rows(comparison, table, rows)).select(columns)
    basis = f" ({comparison.a.operators_basis})" if table == "operator" else ""

    def labels(_columns: Sequence[str]) -> Mapping[str, str]:
        return _LABELS

    drawn = blocks.table("", found, rows, labels=labels, shown=15)
    note = blocks.text(f"Mean time per step{basis}.", "note")
    return blocks.section(
        f"{table}s".replace("_", "-"), TITLES[table], drawn, note if drawn else None
    )


def _left_out(comparison: Comparison, rows: int) -> dict[str, Any]:
    told = [sentence(one) for one in (*scopes(comparison), *comparison.notes)]
    for table, title in TITLES.items():
        more = len(chosen_rows(comparison, table, None)) - rows
        if table not in (PART, THREAD_PART) and more > 0:
            told.append(
                f"{title}: {more:,} smaller changes; `stepscope compare --format csv` has them"
            )
    return blocks.section("left-out", "Scope, and what was left out", blocks.items(told))
