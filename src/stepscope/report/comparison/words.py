"""A comparison in words, shared by terminal, Markdown and pages."""

from __future__ import annotations

import re
from typing import Any

import polars as pl

from stepscope.analysis.comparison.compare import PART, THREAD_PART, Comparison
from stepscope.analysis.comparison.gate import interval_words
from stepscope.analysis.comparison.repeated_runs import RunsChange
from stepscope.analysis.comparison.side import SEPARATOR, Side
from stepscope.report import units
from stepscope.report.scope import scope_words
from stepscope.run.plain_text import printable

TITLES = {
    PART: "Parts of the step",
    THREAD_PART: "Parts of the training thread's step, by the step records",
    "kernel": "Kernels",
    "operator": "Operators",
}
COLUMNS = ("name", "before", "after", "change", "noise", "calls/step", "")
"""Headings of `cells`."""
_STATUS = {"appeared": "new", "disappeared": "gone"}


def headline(comparison: Comparison) -> str:
    """How the step changed, and whether by more than noise."""
    step, runs = comparison.step, comparison.runs
    words = "no change"
    if step.delta_ns:
        words = f"{units.percent(abs(step.change_share))} {'more' if step.delta_ns > 0 else 'less'}"
    if runs.is_repeated:
        noise = f"95% interval {interval_words(runs.step)}, {runs_of(runs)}"
    elif step.noise_ns is None:
        noise = "one run a side: noise unknown"
    else:
        earlier = units.plural(runs.earlier, "earlier run")
        noise = f"noise by {earlier} ±{units.duration(step.noise_ns)}"
    verdict = "" if step.is_beyond_noise or not step.delta_ns else ": within the noise"
    return (
        f"median step {units.duration(step.a_ns)} → {units.duration(step.b_ns)}: {words} "
        f"({noise}){verdict}"
    )


def runs_of(runs: RunsChange) -> str:
    """How many runs were compared: "5 runs against 5"."""
    return f"{units.plural(len(runs.a), 'run')} against {len(runs.b)}"


def mean_step(comparison: Comparison, table: str) -> str:
    """The mean step of both sides, which a table's parts add up to; empty for other tables.

    The headline compares medians, so without this the parts seem not to add up.
    """
    if table not in (PART, THREAD_PART):
        return ""
    parts = comparison.changes.filter(pl.col("table") == table)
    before, after = int(parts["a_ns"].sum()), int(parts["b_ns"].sum())
    return f"mean step {units.duration(before)} → {units.duration(after)}"


def steps_of(side: Side) -> str:
    """How many steps a side has, and what they are."""
    return f"{units.plural(len(side.steps), 'step')}: {side.basis}"


def warnings(comparison: Comparison) -> list[str]:
    """What differs besides the code, as sentences below the headline."""
    found = [f"Caution: {difference}" for difference in comparison.differences]
    if comparison.step.delta_ns and comparison.step.noise_ns is None:
        found.append(
            "One run a side does not show by how much runs of this job differ, so any change may "
            "be chance. --before and --after take several"
        )
    return found


def scopes(comparison: Comparison) -> list[str]:
    """The scope of parts, kernels and operators; one line if both sides agree."""
    told = [
        "" if side.scope is None else scope_words(side.scope)
        for side in (comparison.a, comparison.b)
    ]
    if told[0] == told[1]:
        return [f"Scope: {told[0]}"] if told[0] else []
    return [
        f"Scope {word}: {text}"
        for word, text in zip(("before", "after"), told, strict=True)
        if text
    ]


def in_words(changes: pl.DataFrame) -> pl.DataFrame:
    """Changes with their status as people read it; JSON and CSV keep the names for programs."""
    return changes.with_columns(pl.col("status").replace(_STATUS))


def chosen_rows(comparison: Comparison, table: str, rows: int | None) -> pl.DataFrame:
    """The rows of a table to show: all parts, or the largest changes of kernels and operators."""
    found = comparison.changes.filter(pl.col("table") == table)
    if table in (PART, THREAD_PART):
        return found
    # What took no time on either side changed nothing, however often it was called.
    took = (pl.col("a_ns") > 0) | (pl.col("b_ns") > 0)
    chosen = found.filter(pl.col("status") != "same", took)
    if rows is not None:
        chosen = chosen.head(rows)
    return chosen.with_columns(name=_told_apart(chosen)) if table == "operator" else chosen


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """A row's texts, one for each of `COLUMNS`."""
    noise = row["noise_ns"]
    sign = "+" if row["delta_ns"] > 0 else ("−" if row["delta_ns"] < 0 else "")
    return (
        _name(row["name"]),
        units.duration(row["a_ns"]),
        units.duration(row["b_ns"]),
        sign + units.duration(abs(row["delta_ns"])),
        "?" if noise is None else f"±{units.duration(noise)}",
        _calls(row),
        _STATUS.get(row["status"], row["status"]),
    )


def _calls(row: dict[str, Any]) -> str:
    """How often it was called per step, if that changed; steps have no calls of their parts."""
    if row["table"] in (PART, THREAD_PART):
        return ""
    before, after = row["a_count"], row["b_count"]
    return "" if before == after else f"{units.count(before)} → {units.count(after)}"


def _told_apart(rows: pl.DataFrame) -> pl.Series:
    """Names of operators; one that occurs several times gets the name of an outer operator."""
    names = rows["name"].to_list()
    around = [(place or "").split(SEPARATOR)[-2::-1] for place in rows["place"].to_list()]
    words = []
    for at, name in enumerate(names):
        others = [set(around[n]) for n in range(len(names)) if n != at and names[n] == name]
        telling = (outer for outer in around[at] if not any(outer in other for other in others))
        nearest = next(telling, around[at][0] if around[at] else None)
        words.append(f"{name} in {nearest}" if others and nearest else name)
    return pl.Series(words, dtype=pl.String)


def _name(name: str) -> str:
    """A kernel's name without return type and arguments."""
    bare = re.sub(r"^void ", "", printable(name))
    return re.sub(r"(?<=\w)\(.*\)$|(?<=>)\(.*\)$", "", bare)
