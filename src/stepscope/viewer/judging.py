"""The findings of a run with their places in a trace, and the comparison of two traces."""

from __future__ import annotations

from typing import Any

import polars as pl

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding
from stepscope.analysis.comparison.compare import Comparison, compare
from stepscope.analysis.comparison.side import Side, make_side
from stepscope.report import units
from stepscope.run.reader import open_run
from stepscope.trace.arrays.intervals import Intervals
from stepscope.viewer.opened import Content

_CAUSE_OF = {
    "input-bound": "input",
    "synchronisation": "synchronisation",
    "allocator-churn": "allocation",
    "pageable-copies": "pageable_copy",
    "slow-phase": "annotated_phase",
    "launch-bound": "op_dispatch",
    "many-small-kernels": "op_dispatch",
    "cpu-bound-python": "python",
    "garbage-collector": "python",
}
"""Findings whose time is idle time of one cause: its longest stretch is where to look."""
_EXPOSED_OF = {
    "exposed-communication": "exposed_communication",
    "poor-overlap": "exposed_communication",
    "exposed-copies": "exposed_memcpy",
}
"""Findings about work that nothing hides: its longest stretch."""
MOST_CHANGES = 1000


def findings_of(path: str, content: Content, rank: int) -> dict[str, Any]:
    """The diagnosis of what was opened, with a place for every finding that has one.

    Args:
        path: The run, or the file.
        content: The trace that places are looked up in.
        rank: Its rank; the findings of other ranks have no place in it.
    """
    diagnosis = diagnose(open_run(path))
    partition = diagnosis.shown.partition
    return {
        "verdict": diagnosis.verdict,
        "step_ns": diagnosis.shown.step_ns,
        "partition": None
        if partition is None
        else {
            "basis": partition.basis,
            "steps": partition.steps,
            "total_ns": partition.total_ns,
            "parts": [{"name": p.name, "total_ns": p.total_ns} for p in partition.parts],
        },
        "findings": [_finding(one, content, rank, diagnosis) for one in diagnosis.findings],
        "notes": list(diagnosis.notes),
    }


def _finding(found: Finding, content: Content, rank: int, diagnosis: Diagnosis) -> dict[str, Any]:
    is_here = found.rank == rank or len(diagnosis.ranks) == 1
    return {
        "id": found.id,
        "title": found.title,
        "severity": found.severity.value,
        "rank": found.rank,
        "saving_ns": found.saving_ns,
        "saving_reason": found.saving_reason,
        "assumption": found.assumption,
        "predicted_step_ns": found.predicted_step_ns,
        "evidence": [
            {"label": one.label, "shown": units.value(one.value, one.unit)}
            for one in found.evidence
        ],
        "advice": found.advice,
        "steps": list(found.steps),
        "place": _place(found, content) if is_here else None,
    }


def _place(found: Finding, content: Content) -> dict[str, int] | None:
    """Where to look, from the origin on: the longest stretch of what it counts, else its steps."""
    origin = content.index.origin_ns
    idle, cause = content.extras.idle, _CAUSE_OF.get(found.id)
    if idle is not None and cause is not None:
        mine = idle.filter(pl.col("cause") == cause)
        if len(mine):
            row = mine.row(int((mine["end_ns"] - mine["start_ns"]).arg_max() or 0), named=True)
            return {"start_ns": row["start_ns"] - origin, "end_ns": row["end_ns"] - origin}
    longest = _longest_exposed(found.id, content)
    if longest is not None:
        return {"start_ns": longest[0] - origin, "end_ns": longest[1] - origin}
    steps = content.trace.steps.filter(pl.col("step").is_in(list(found.steps)))
    if not len(steps):
        return None
    first = steps.row(0, named=True)
    return {"start_ns": first["start_ns"] - origin, "end_ns": first["end_ns"] - origin}


def _longest_exposed(rule: str, content: Content) -> tuple[int, int] | None:
    """The longest stretch of what a rule about exposed work counts; None for other rules."""
    attribute = _EXPOSED_OF.get(rule)
    if attribute is None:
        return None
    best: tuple[int, int] | None = None
    for device in content.basis.devices:
        stretches: Intervals = getattr(device.sets, attribute)
        if len(stretches):
            at = int(stretches.lengths.argmax())
            span = int(stretches.starts[at]), int(stretches.ends[at])
            if best is None or span[1] - span[0] > best[1] - best[0]:
                best = span
    return best


def comparison_of(before: Content, after: Content) -> dict[str, Any]:
    """What changed from one trace to the other."""
    sides = [make_side(one.trace.path, one.trace) for one in (before, after)]
    return _comparison(compare(*sides))


def _comparison(found: Comparison) -> dict[str, Any]:
    step = found.step
    tables = {
        name: found.changes.filter(pl.col("table") == name).head(MOST_CHANGES).to_dicts()
        for name in ("part", "kernel", "operator")
    }
    return {
        "a": _side(found.a),
        "b": _side(found.b),
        "step": {
            "a_ns": step.a_ns,
            "b_ns": step.b_ns,
            "delta_ns": step.delta_ns,
            "change_share": step.change_share,
            "noise_ns": step.noise_ns,
            "is_beyond_noise": step.is_beyond_noise,
        },
        "changes": tables,
        "notes": list(found.notes),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "path": side.path,
        "basis": side.basis,
        "parts_basis": side.parts_basis,
        "steps": list(side.steps),
        "step_ns": side.step_ns.tolist(),
    }
