"""A comparison on a terminal, as Markdown, CSV or JSON."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.analysis.comparison.compare import Comparison, StepChange
from stepscope.analysis.comparison.side import SEPARATOR, Side
from stepscope.report import units
from stepscope.report.answer.tables import (
    describe_scope,
    frame_to_csv,
    markdown_text,
    plain,
    printable,
    scope_to_dict,
)

FORMAT_VERSION = 1
_TITLES = {"part": "Parts of the step", "kernel": "Kernels", "operator": "Operators"}
_STYLES = {"grew": "red", "appeared": "red", "shrank": "green", "disappeared": "green"}
_WIDEST_NAME = 52


def comparison_to_dict(comparison: Comparison, failed: str | None) -> dict[str, Any]:
    """Plain values: both sides, the step, every change, notes, and why it failed, if it did."""
    return {
        "format": "stepscope-compare",
        "version": FORMAT_VERSION,
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "step": plain(comparison.step),
        "changes": plain(comparison.changes),
        "notes": list(comparison.notes),
        "failed": failed,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "path": side.path,
        "basis": side.basis,
        "steps": list(side.steps),
        # Of parts, kernels and operators; where there is no trace, of the step record.
        "scope": {"steps": list(side.steps)} if side.scope is None else scope_to_dict(side.scope),
        "step_ns": side.step_ns.tolist(),
        "parts_basis": side.parts_basis,
        "operators_basis": side.operators_basis,
    }


def comparison_to_csv(comparison: Comparison) -> str:
    """Every change, one per line."""
    return frame_to_csv(comparison.changes)


def comparison_to_markdown(comparison: Comparison, rows: int) -> str:
    """The same as on a terminal, for a pull request."""
    lines = [_headline(comparison.step), ""]
    lines += [
        f"- {word}: {markdown_text(side.path)}, {_steps(side)}"
        for word, side in (("before", comparison.a), ("after", comparison.b))
    ]
    lines.append("")
    for table, title in _TITLES.items():
        chosen = _chosen(comparison, table, rows)
        if not len(chosen):
            continue
        lines += [
            f"**{title}**",
            "",
            "| name | before | after | change | noise | |",
            "|---|--:|--:|--:|--:|---|",
        ]
        lines += [
            "| " + " | ".join(markdown_text(cell) for cell in _cells(row)) + " |"
            for row in chosen.iter_rows(named=True)
        ]
        lines.append("")
    lines += [f"- {markdown_text(note)}" for note in (*_scopes(comparison), *comparison.notes)]
    return "\n".join(lines).rstrip() + "\n"


def print_comparison(comparison: Comparison, console: Console, rows: int) -> None:
    """The step, then its parts, kernels and operators with the largest changes."""
    for word, side in (("before", comparison.a), ("after", comparison.b)):
        console.print(Text(printable(f"{word:7} {side.path}  ·  {_steps(side)}"), "dim"))
    console.print()
    console.print(Text(_headline(comparison.step), "bold"))
    for table, title in _TITLES.items():
        chosen = _chosen(comparison, table, rows)
        if not len(chosen):
            continue
        console.print()
        of = comparison.changes.filter(pl.col("table") == table)
        heading = Text(title, "bold")
        if table == "operator":
            heading.append(f"   {comparison.a.operators_basis}", "dim")
        if len(of) > len(chosen):
            heading.append(f"   the {len(chosen)} largest changes of {len(of)}", "dim")
        console.print(heading)
        console.print(Padding(_table(chosen), (0, 0, 0, 2)))
    for line in _scopes(comparison):
        console.print(Text(line, "dim"))
    for note in comparison.notes:
        console.print(Text(f"Note: {printable(note)}", "yellow"))


def _scopes(comparison: Comparison) -> list[str]:
    """What parts, kernels and operators are about, once where both sides agree."""
    told = [
        "" if side.scope is None else describe_scope(side.scope)
        for side in (comparison.a, comparison.b)
    ]
    if told[0] == told[1]:
        return [told[0]] if told[0] else []
    return [f"{word}: {text}" for word, text in zip(("before", "after"), told, strict=True) if text]


def _steps(side: Side) -> str:
    return f"{len(side.steps)} step{'s' if len(side.steps) != 1 else ''}: {side.basis}"


def _name(name: str) -> str:
    """A kernel's name without its return type and arguments, cut to what a person reads."""
    bare = re.sub(r"^void ", "", printable(name))
    bare = re.sub(r"(?<=\w)\(.*\)$|(?<=>)\(.*\)$", "", bare)
    return bare if len(bare) <= _WIDEST_NAME else f"{bare[: _WIDEST_NAME - 1]}…"


def _headline(step: StepChange) -> str:
    words = "no change"
    if step.delta_ns:
        words = f"{units.share(abs(step.change_share))} {'more' if step.delta_ns > 0 else 'less'}"
    noise = (
        "noise not known" if step.noise_ns is None else f"noise ±{units.duration(step.noise_ns)}"
    )
    verdict = "" if step.is_beyond_noise or not step.delta_ns else ": within the noise"
    return (
        f"step {units.duration(step.a_ns)} → {units.duration(step.b_ns)}: {words} "
        f"({noise}){verdict}"
    )


def _chosen(comparison: Comparison, table: str, rows: int) -> pl.DataFrame:
    found = comparison.changes.filter(pl.col("table") == table)
    if table == "part":
        return found
    # What took no time on either side changes nothing, however often it was called.
    took = (pl.col("a_ns") > 0) | (pl.col("b_ns") > 0)
    chosen = found.filter(pl.col("status") != "same", took).head(rows)
    return chosen.with_columns(name=_told_apart(chosen)) if table == "operator" else chosen


def _told_apart(rows: pl.DataFrame) -> pl.Series:
    """Names of operators; one that stands there several times is told by what is around it."""
    names = rows["name"].to_list()
    around = [(place or "").split(SEPARATOR)[-2::-1] for place in rows["place"].to_list()]
    words = []
    for at, name in enumerate(names):
        others = [set(around[n]) for n in range(len(names)) if n != at and names[n] == name]
        telling = (outer for outer in around[at] if not any(outer in other for other in others))
        nearest = next(telling, around[at][0] if around[at] else None)
        words.append(f"{name} in {nearest}" if others and nearest else name)
    return pl.Series(words, dtype=pl.String)


def _table(rows: pl.DataFrame) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("name", overflow="ellipsis", no_wrap=True)
    for name in ("before", "after", "change", "noise"):
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    table.add_column("")
    for row in rows.iter_rows(named=True):
        cells = _cells(row)
        style = _STYLES.get(row["status"], "dim")
        table.add_row(*(Text(cell) for cell in cells[:3]), Text(cells[3], style), *cells[4:])
    return table


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    noise = row["noise_ns"]
    sign = "+" if row["delta_ns"] > 0 else ("−" if row["delta_ns"] < 0 else "")
    count = "" if row["a_count"] == row["b_count"] else _counts(row)
    return (
        _name(row["name"]),
        units.duration(row["a_ns"]),
        units.duration(row["b_ns"]),
        sign + units.duration(abs(row["delta_ns"])),
        "?" if noise is None else f"±{units.duration(noise)}",
        f"{row['status']}{count}",
    )


def _counts(row: dict[str, Any]) -> str:
    return f", {units.count(row['a_count'])} → {units.count(row['b_count'])} per step"
