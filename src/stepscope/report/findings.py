"""Findings as text, in one table, and as plain values: the same of traces and of snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.errors import UsageError
from stepscope.report import units
from stepscope.report.document import ShownFinding
from stepscope.report.plain import plain
from stepscope.run.figures import rank_names

if TYPE_CHECKING:
    from stepscope.advice.finding import Finding
    from stepscope.report.outputs import Layout

FINDINGS: dict[str, pl.DataType | type[pl.DataType]] = {
    "id": pl.String,
    "severity": pl.String,
    "rank": pl.Int64,
    "title": pl.String,
    "saving_ns": pl.Int64,  # per step; null: not estimated
    "is_upper_bound": pl.Boolean,  # whether most fixes bring less
    "saving_of_job": pl.Float64,  # share of the recorded time, of what lies outside the steps
    "saving_reason": pl.String,  # why not
    "assumption": pl.String,
    "placed": pl.String,  # why not where its saving puts it
    "predicted_step_ns": pl.Int64,
    "steps": pl.List(pl.Int64),
    "evidence": pl.String,  # as text for people
    "advice": pl.String,
    "page": pl.String,
}
"""One row per finding, the largest saving first."""

NOT_WRITTEN = (
    "changes",
    "longest_work",
    "waits_for",
    "slows_everything",
    "with_waits_ns",
    "is_behind_waits",
    "own_saving_ns",
    "next_rank",
    "outside_ns",
)
"""Fields of a finding that only serve to put savings together, or to find it in a trace."""


def shown_findings(
    findings: tuple[Finding, ...], shown_rank: int, *, has_ranks: bool
) -> tuple[ShownFinding, ...]:
    """The first of each group of findings that are alike, and which ranks have it."""
    groups = findings_alike(findings, shown_rank)
    return tuple(ShownFinding(group[0], ranks_with(group) if has_ranks else "") for group in groups)


def findings_alike(
    findings: tuple[Finding, ...], shown_rank: int | None = None
) -> list[list[Finding]]:
    """Findings of one rule on several ranks together, in the order of the findings.

    Args:
        shown_rank: The rank whose step the report states. Its finding comes first of each group, so
            that savings have the same base.
    """
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.id, _which(finding)), []).append(finding)
    place = {id(finding): number for number, finding in enumerate(findings)}
    ordered = [
        sorted(group, key=lambda one: (one.rank != shown_rank, place[id(one)]))
        for group in groups.values()
    ]
    return sorted(ordered, key=lambda group: place[id(group[0])])


def _which(finding: Finding) -> str:
    """What tells findings of one rule on one rank apart, and causes from what they bring about."""
    if finding.id == "slow-phase":
        return finding.title
    if finding.id == "work-outside-steps":
        return finding.title.partition(" ")[0]
    if finding.id == "stalled-step":
        return f"{finding.steps} {finding.placed}"
    return ""


def ranks_with(group: list[Finding]) -> str:
    """The ranks that have a finding, the one with the largest saving first."""
    others = {finding.rank for finding in group[1:]} - {group[0].rank}
    text = f"rank {group[0].rank}"
    if others:
        own, largest = group[0].saving_ns or 0, max(one.saving_ns or 0 for one in group[1:])
        # As they are shown: a difference that nobody can see is none.
        is_less = 0 < largest < own and units.duration(largest) != units.duration(own)
        also = "less" if is_less else "also"
        text += f"; {also} on {units.plural(len(others), 'other')}: {rank_names(others)}"
    return text


def short_saving(finding: Finding, whose: str = "") -> str:
    """What the fix saves, in a few words.

    Args:
        whose: Whose step it is saved from, as "rank 3's "; empty for that of the report. A title
            states shares of that step, so it is also named where no saving is.
    """
    if finding.saving_of_job is not None:
        return f"saves {_of_job(finding.saving_of_job)}"
    if finding.saving_ns is None or finding.predicted_step_ns is None:
        return f"{whose}saving: not estimated"
    saved = f"{finding.up_to}{units.duration(finding.saving_ns)}"
    return f"saves {saved} of {whose}{units.duration(finding.step_ns)}"


def saving(finding: Finding) -> str:
    """What the fix saves, or why that is not estimated."""
    if finding.saving_of_job is not None:
        return f"{_of_job(finding.saving_of_job)}: {finding.saving_reason}"
    if finding.saving_ns is None or finding.predicted_step_ns is None:
        return f"not estimated: {finding.saving_reason}"
    whole = "in the whole file" if finding.is_of_whole_file else "per step"
    return (
        f"{finding.up_to}{units.duration(finding.saving_ns)} {whole}: "
        f"{units.duration(finding.step_ns)} → {units.duration(finding.predicted_step_ns)}"
    )


def _of_job(share: float) -> str:
    return f"{units.percent(share)} of the recorded time"


def findings_table(findings: Sequence[Finding]) -> pl.DataFrame:
    """Columns `FINDINGS`."""
    rows = []
    for finding in findings:
        seen = (f"{item.label}: {units.value(item.value, item.unit)}" for item in finding.evidence)
        shown = {"severity": finding.severity.value, "evidence": "; ".join(seen)}
        rows.append({name: shown.get(name, getattr(finding, name)) for name in FINDINGS})
    return pl.DataFrame(rows, schema=FINDINGS)


def finding_to_dict(finding: Finding) -> dict[str, Any]:
    """A finding as plain values."""
    values = {key: item for key, item in plain(finding).items() if key not in NOT_WRITTEN}
    return {**values, "page": finding.page}


def picked(tables: Mapping[str, pl.DataFrame], layout: Layout) -> pl.DataFrame:
    """The table of a report that a layout chooses, by default the findings."""
    name = layout.table or "findings"
    if name not in tables:
        raise UsageError(f"the report has no table '{name}': it has {', '.join(tables)}")
    return tables[name]
