"""The findings of a run with their places in a trace, and the comparison of two traces."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import polars as pl

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.evidence.locations import location_of
from stepscope.advice.finding import Finding
from stepscope.analysis.comparison.compare import compare
from stepscope.analysis.comparison.side import Side, make_side
from stepscope.analysis.record.step_strip import StepStrip
from stepscope.report import figures, units
from stepscope.report.comparison import main_change, with_status_labels
from stepscope.report.diagnosis.json import partition_to_dict
from stepscope.report.findings import findings_alike, ranks_with, saving
from stepscope.report.plain import plain
from stepscope.trace.paths import resolve_runs
from stepscope.viewer.opened import Content

MOST_CHANGES = 1000


def findings_of(paths: tuple[str, ...], content: Content, rank: int) -> dict[str, Any]:
    """The diagnosis of what was opened, with a place for every finding that has one.

    Args:
        paths: The run, the file, or several files that are ranks of one run.
        content: The trace that places are looked up in.
        rank: Its rank, whose step is divided. What only other ranks have has no place in it.
    """
    diagnosis = diagnose(resolve_runs(paths)[0])
    mine = next((one for one in diagnosis.ranks if one.rank == rank), diagnosis.shown)
    parts = mine.shown_partition
    return {
        "verdict": diagnosis.verdict,
        "ranks": len(diagnosis.ranks),
        "shown_rank": mine.rank,
        "is_whole_file": mine.is_whole_file,
        "step_ns": mine.step_ns,
        "partition": None if parts is None else partition_to_dict(parts),
        "findings": [
            _finding(group, content, rank, diagnosis)
            for group in findings_alike(diagnosis.findings, diagnosis.shown.rank)
        ],
        "notes": list(diagnosis.notes),
    }


def _finding(
    group: list[Finding], content: Content, rank: int, diagnosis: Diagnosis
) -> dict[str, Any]:
    """A finding, with the ranks that have it and its place in the trace of one of them."""
    found = group[0]
    is_only_rank = len(diagnosis.ranks) == 1
    here = next((one for one in group if is_only_rank or one.rank == rank), None)
    return {
        "id": found.id,
        "title": found.title,
        "severity": found.severity.value,
        "where": "" if is_only_rank else ranks_with(group),
        "saving": ("saving " if not found.is_estimated else "saves ") + saving(found),
        "advice": found.advice,
        "assumption": found.assumption,
        "placed": found.placed,
        "evidence": [
            {"label": one.label, "shown": units.value(one.value, one.unit)}
            for one in found.evidence
        ],
        "steps": list(found.steps),
        "place": None if here is None else _place(here, content),
    }


def _place(found: Finding, content: Content) -> dict[str, int | None] | None:
    """Where to look, from the origin on."""
    sets = [device.sets for device in content.basis.devices]
    place = location_of(found, content.trace, content.extras.idle, sets)
    if place is None:
        return None
    origin = content.index.origin_ns
    return {
        "start_ns": place.start_ns - origin,
        "end_ns": place.end_ns - origin,
        "event": place.event,
    }


def comparison_of(before: Content, after: Content) -> dict[str, Any]:
    """What changed from one trace to the other."""
    found = compare(*(make_side(one.trace.path, one.trace) for one in (before, after)))
    parts = found.changes.filter(pl.col("table") == "part").select("name", "a_ns", "b_ns")
    drawn = figures.waterfall(parts.rows())
    tables = {
        name: with_status_labels(
            found.changes.filter(pl.col("table") == name).head(MOST_CHANGES)
        ).to_dicts()
        for name in ("part", "kernel", "operator")
    }
    return {
        "a": _side(found.a),
        "b": _side(found.b),
        "step": plain(found.step),
        "changed": main_change(found),
        "waterfall": None if drawn is None else drawn.drawn,
        "differences": list(found.differences),
        "changes": tables,
        "strips": [
            asdict(StepStrip.of(word, side.steps, side.step_ns.tolist()))
            for word, side in (("before", found.a), ("after", found.b))
        ],
        "notes": list(found.notes),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "path": side.path,
        "basis": side.basis,
        "parts_basis": side.parts_basis,
    }
