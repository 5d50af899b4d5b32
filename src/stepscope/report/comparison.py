"""A comparison of two runs or traces, and whether it failed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.comparison.compare import PART, THREAD_PART, Comparison
from stepscope.analysis.comparison.gate import (
    CANNOT_TELL,
    FAILED,
    Check,
    assumption_text,
    interval_text,
)
from stepscope.analysis.comparison.side import SEPARATOR, Side
from stepscope.analysis.record.step_strip import StepStrip
from stepscope.report import figures, units
from stepscope.report.answer import answer_blocks, question_heading
from stepscope.report.document import (
    Block,
    Column,
    DataTable,
    Facts,
    Gap,
    Heading,
    Items,
    Labelled,
    Line,
    Look,
    Note,
    Only,
    Page,
    Section,
    Span,
    StyledText,
    Table,
    Title,
)
from stepscope.report.plain import plain, scope_to_dict
from stepscope.report.scope import scope_text
from stepscope.run.figures import sentence
from stepscope.terminal.plain_text import printable

if TYPE_CHECKING:
    from stepscope.fleet.scaling import Scaling
    from stepscope.report.outputs import Layout

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
TITLES = {
    PART: "Parts of the step",
    THREAD_PART: "Parts of the training thread's step, by the step records",
    "kernel": "Kernels",
    "operator": "Operators",
}
COLUMNS = ("name", "before", "after", "change", "noise", "calls/step", "")
"""Headings of `cells`."""
_STATUS = {"appeared": "new", "disappeared": "gone"}
_GIVE_WAY = ("calls/step", "noise", "before", "after")
"""Columns that a narrow terminal does without, the first one first."""
_STYLES = {"grew": "red", "appeared": "red", "shrank": "green", "disappeared": "green"}


@dataclass(frozen=True)
class CheckedComparison:
    """A comparison, and the conditions that fail it.

    Attributes:
        scaling: How the second side scales, where it has another number of ranks; None: it has
            not.
    """

    comparison: Comparison
    checks: tuple[Check, ...] = ()
    scaling: Scaling | None = None

    @property
    def failed(self) -> str | None:
        """Which conditions failed, and why; None: none did."""
        return self._reasons(FAILED)

    @property
    def unclear(self) -> str | None:
        """What is unknown, and why; None: nothing is."""
        found = self._reasons(CANNOT_TELL)
        return None if found is None else f"cannot tell {found}"

    def verdicts(self, where: str = "") -> list[str]:
        """What each condition says, a line each; `where` names the comparison among several."""
        return [f"{check.outcome}: {where}{check.reason}" for check in self.checks]

    def _reasons(self, outcome: str) -> str | None:
        return "; ".join(one.reason for one in self.checks if one.outcome == outcome) or None


def document(checked: CheckedComparison, layout: Layout) -> Iterator[Block]:
    """The step, its parts, and the kernels and operators that changed most."""
    comparison = checked.comparison
    sides = (("before", comparison.a), ("after", comparison.b))
    lines = (f"{word:7} {side.path}  ·  {steps_of(side)}" for word, side in sides)
    above = (Line(line, "dim", is_whole=True) for line in lines)
    yield Only("terminal", (*above, Gap()))
    yield Line(headline(comparison), "bold")
    if changed := main_change(comparison):
        yield Line(changed)
    # In a pull request, the answer comes first; on a terminal, the verb says what the checks say.
    checks = (Labelled(one.outcome.capitalize(), (Line(one.reason),)) for one in checked.checks)
    about = tuple(f"{word}: {side.path}, {steps_of(side)}" for word, side in sides)
    yield Only("markdown", (*checks, Items(about)))
    yield Items(tuple(warnings(comparison)), style="yellow")
    for table, title in TITLES.items():
        chosen = chosen_rows(comparison, table, layout.rows)
        if not len(chosen):
            continue
        asides = [mean_step(comparison, table)]
        if table == "operator":
            asides.append(comparison.a.operators_basis)
        of = comparison.changes.filter(pl.col("table") == table)
        if len(of) > len(chosen):
            asides.append(f"the {len(chosen)} largest changes of {len(of)}")
        yield Gap()
        yield Heading(title, "   ".join(filter(None, asides)), level=4)
        yield _table(chosen)
    yield Items(tuple(scopes(comparison)), style="dim")
    for note in comparison.notes:
        yield Note(note)
    if checked.scaling is None:
        return
    from stepscope.fleet.scaling import SCALING

    yield Gap()
    paths = Title(f"{checked.comparison.a.path}, {checked.comparison.b.path}")
    yield Only("terminal", (paths,))
    yield question_heading(SCALING)
    yield from answer_blocks(checked.scaling, SCALING, layout)


def _table(rows: pl.DataFrame) -> Table:
    """The table: names are cut, then columns left out; numbers are never cut."""
    columns = (Column(name, bool(name) and at > 0, wraps=False) for at, name in enumerate(COLUMNS))
    place = COLUMNS.index("change")
    found: list[tuple[StyledText, ...]] = []
    for row in rows.iter_rows(named=True):
        texts: list[StyledText] = list(cells(row))
        texts[place] = (Span(cells(row)[place], _STYLES.get(row["status"], "dim")),)
        found.append(tuple(texts))
    return Table(tuple(columns), tuple(found), Look.RULED, indent=2, gives_way=_GIVE_WAY)


def frames(checked: CheckedComparison, _layout: Layout) -> Iterator[pl.DataFrame]:
    """Every change, one per line."""
    yield checked.comparison.changes


def page(checked: CheckedComparison, rows: int) -> Page:
    """The page."""
    comparison = checked.comparison
    sections = [
        _verdict(checked),
        _parts(comparison),
        _scaling(checked.scaling),
        _steps(comparison),
        *(_section(comparison, table, rows) for table in TITLES),
        _left_out(comparison, rows),
    ]
    title = f"{Path(comparison.a.path).name} → {Path(comparison.b.path).name}"
    about = "What changed, and whether it is more than noise"
    return Page(title, about, "", sections, kind="Comparison")


def _scaling(scaling: Scaling | None) -> Section:
    """How the second side scales, where it has another number of ranks."""
    if scaling is None:
        return Section("scaling", "Scaling")
    columns = (*scaling.growth.columns, *scaling.ranks.columns)
    labels = {name: name.removesuffix("_ns").replace("_", " ") for name in columns}
    return Section(
        "scaling",
        "Scaling",
        (
            Line(sentence(scaling.verdict)),
            DataTable("What grew", scaling.growth, labels=labels),
            DataTable("Ranks", scaling.ranks, labels=labels),
            Items(scaling.notes),
        ),
    )


def _verdict(checked: CheckedComparison) -> Section:
    comparison = checked.comparison
    sides = (("before", comparison.a), ("after", comparison.b))
    return Section(
        "verdict",
        "Verdict",
        (
            Line(sentence(headline(comparison)), role="verdict"),
            Line(sentence(changed), role="lead") if (changed := main_change(comparison)) else None,
            *(
                Line(f"{one.outcome.capitalize()}: {one.reason}", role="lead")
                for one in checked.checks
            ),
            Facts(tuple((word, f"{side.path}, {steps_of(side)}") for word, side in sides)),
            Items(tuple(warnings(comparison))),
        ),
    )


def _parts(comparison: Comparison) -> Section:
    """From the one mean step to the other: the bars add up to the difference."""
    found = comparison.changes.filter(pl.col("table") == PART)
    if found.is_empty():
        return Section("parts", "From one step to the other")
    before, after = int(found["a_ns"].sum()), int(found["b_ns"].sum())
    note = (
        f"Mean step ({comparison.a.parts_basis}): {units.duration(before)} before, "
        f"{units.duration(after)} after. The bars between add up to the difference exactly; red "
        "grew, blue shrank. The verdict compares medians instead, which single slow steps do not "
        "move."
    )
    drawn = figures.waterfall(found.select("name", "a_ns", "b_ns").rows())
    return Section("parts", "From one step to the other", (drawn, Line(note, role="note")))


def _steps(comparison: Comparison) -> Section:
    groups = [
        StepStrip.of(word, side.steps, side.step_ns.tolist())
        for word, side in (("before", comparison.a), ("after", comparison.b))
    ]
    if max(len(one.first) for one in groups) < 2:
        return Section("steps", "Steps")
    return Section("steps", "Steps", (figures.strips(groups),))


def _section(comparison: Comparison, table: str, rows: int) -> Section:
    columns = [
        name for name in _LABELS if table not in (PART, THREAD_PART) or not name.endswith("_count")
    ]
    found = with_status_labels(chosen_rows(comparison, table, rows)).select(columns)
    basis = f" ({comparison.a.operators_basis})" if table == "operator" else ""
    note = Line(f"Mean time per step{basis}.", role="note")
    drawn = (DataTable("", found, labels=_LABELS, shown=15), note) if len(found) else ()
    return Section(f"{table}s".replace("_", "-"), TITLES[table], drawn)


def _left_out(comparison: Comparison, rows: int) -> Section:
    lines = [sentence(one) for one in (*scopes(comparison), *comparison.notes)]
    for table, title in TITLES.items():
        more = len(chosen_rows(comparison, table, None)) - rows
        if table not in (PART, THREAD_PART) and more > 0:
            lines.append(
                f"{title}: {more:,} smaller changes; `stepscope compare --format csv` has them"
            )
    return Section("left-out", "Scope, and what was left out", (Items(tuple(lines)),))


_NOTABLE_PART = 0.2
"""Of the change, what a part makes up at least to be named."""
_MOST_NAMED = 2
_NOTABLE_REST = 0.05
"""Of the change, what the parts that are not named make up at least to be mentioned."""
_APART = 0.1
"""How far the changes of mean and median may be apart, as a share of the latter, unmentioned."""
_MORE = {True: "more", False: "less"}


def headline(comparison: Comparison) -> str:
    """How the step changed, and whether by more than noise."""
    step, runs = comparison.step, comparison.runs
    describe = "no change"
    if step.delta_ns:
        describe = f"{units.percent(abs(step.change_share))} {_MORE[step.delta_ns > 0]}"
    if runs.is_repeated:
        count = units.plural(len(runs.a), "run")
        noise = f"95% interval {interval_text(runs.step)}, {count} against {len(runs.b)}"
    elif step.noise_ns is None:
        noise = "one run a side: noise unknown"
    else:
        earlier = units.plural(runs.earlier, "earlier run")
        noise = f"noise by {earlier} ±{units.duration(step.noise_ns)}"
    verdict = "" if step.is_beyond_noise or not step.delta_ns else ": within the noise"
    quicker = ""
    if runs.quartile is not None:
        more = f"{units.percent(abs(runs.quartile.share))} {_MORE[runs.quartile.share >= 0]}"
        quicker = f"; lower quartile {more} (95% interval {interval_text(runs.quartile)})"
    return (
        f"median step {units.duration(step.a_ns)} → {units.duration(step.b_ns)}: {describe} "
        f"({noise}){verdict}{quicker}"
    )


def _signed(ns: int) -> str:
    return f"{'+' if ns > 0 else '−'}{units.duration(abs(ns))}"


def main_change(comparison: Comparison) -> str:
    """Which parts make up the change of the mean step, adding up to it; empty if none stands out.

    Parts have no medians that add up, so this has the means, which it says.
    """
    parts = comparison.changes.filter(pl.col("table") == PART)
    whole = int(parts["delta_ns"].sum())
    if not whole or not comparison.step.delta_ns or not comparison.step.is_beyond_noise:
        return ""
    same = parts.filter(pl.col("delta_ns").sign() == (1 if whole > 0 else -1))
    notable = same.filter(pl.col("delta_ns").abs() >= _NOTABLE_PART * abs(whole))
    rows = notable.sort(pl.col("delta_ns").abs(), descending=True).head(_MOST_NAMED)
    if rows.is_empty():
        return ""

    def describe(name: str, before: int, after: int, delta: int) -> str:
        kind = "gone" if before and not after else "new" if after and not before else ""
        return f"{name} {kind} {_signed(delta)}".replace("  ", " ")

    named = [describe(*row) for row in rows.select("name", "a_ns", "b_ns", "delta_ns").iter_rows()]
    rest = whole - int(rows["delta_ns"].sum())
    if abs(rest) >= _NOTABLE_REST * abs(whole):
        named.append(f"the other parts together {_signed(rest)}")
    before, after = (units.duration(int(parts[name].sum())) for name in ("a_ns", "b_ns"))
    of_median = comparison.step.delta_ns
    is_apart = abs(whole - of_median) > _APART * abs(of_median)
    why = "; single slow steps move the mean, not the median" if is_apart else ""
    return f"mean step {before} → {after}, {_signed(whole)}: {', '.join(named)}{why}"


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
    if comparison.step.delta_ns and (assumed := assumption_text(comparison.runs)):
        found.append(f"{sentence(assumed)}. --before and --after take several runs of each version")
    return found


def scopes(comparison: Comparison) -> list[str]:
    """The scope of parts, kernels and operators; one line if both sides agree."""
    lines = [
        "" if side.scope is None else scope_text(side.scope)
        for side in (comparison.a, comparison.b)
    ]
    if lines[0] == lines[1]:
        return [f"Scope: {lines[0]}"] if lines[0] else []
    return [
        f"Scope {word}: {text}"
        for word, text in zip(("before", "after"), lines, strict=True)
        if text
    ]


def with_status_labels(changes: pl.DataFrame) -> pl.DataFrame:
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
    return chosen.with_columns(name=_distinct_names(chosen)) if table == "operator" else chosen


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


def _distinct_names(rows: pl.DataFrame) -> pl.Series:
    """Names of operators; one that occurs several times gets the name of an outer operator."""
    names = rows["name"].to_list()
    around = [(place or "").split(SEPARATOR)[-2::-1] for place in rows["place"].to_list()]
    describe = []
    for at, name in enumerate(names):
        others = [set(around[n]) for n in range(len(names)) if n != at and names[n] == name]
        telling = (outer for outer in around[at] if not any(outer in other for other in others))
        nearest = next(telling, around[at][0] if around[at] else None)
        describe.append(f"{name} in {nearest}" if others and nearest else name)
    return pl.Series(describe, dtype=pl.String)


def _name(name: str) -> str:
    """A kernel's name without return type and arguments."""
    bare = re.sub(r"^void ", "", printable(name))
    return re.sub(r"(?<=\w)\(.*\)$|(?<=>)\(.*\)$", "", bare)


def to_json(checked: CheckedComparison) -> dict[str, Any]:
    """Plain values: both sides, the step, every change, and everything said about them."""
    comparison = checked.comparison
    scaling = {}
    if checked.scaling is not None:
        scope = scope_to_dict(checked.scaling.scope)
        scaling = {"scaling": {**plain(checked.scaling), "scope": scope}}
    return {
        "a": _side(comparison.a),
        "b": _side(comparison.b),
        "step": plain(comparison.step),
        "changes": plain(comparison.changes),
        "differences": list(comparison.differences),
        "notes": list(comparison.notes),
        "runs": plain(comparison.runs),
        "checks": [plain(check) for check in checked.checks],
        "failed": checked.failed,
        "unclear": checked.unclear,
        **scaling,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "path": side.path,
        "basis": side.basis,
        "steps": list(side.steps),
        # Of parts, kernels and operators; without a trace, of the step record.
        "scope": {"steps": list(side.steps)} if side.scope is None else scope_to_dict(side.scope),
        "step_ns": side.step_ns.tolist(),
        "parts_basis": side.parts_basis,
        "operators_basis": side.operators_basis,
    }
