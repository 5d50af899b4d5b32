"""The diagnosis as JSON: integer nanoseconds, and the scope of every number."""

from __future__ import annotations

from typing import Any

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.job.compared import RankComparison
from stepscope.advice.rank.summary import RankSummary
from stepscope.analysis.selection.partition import Partition
from stepscope.report import metrics
from stepscope.report.findings import finding_to_dict
from stepscope.report.plain import plain, scope_to_dict


def to_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Plain values, as `stepscope report --format json` prints them."""
    job = diagnosis.run.job
    return {
        "path": diagnosis.run.location,
        "job": plain(job),
        "verdict": diagnosis.verdict,
        "rank_shown": diagnosis.shown.rank,
        "ranks": [_rank(rank, diagnosis) for rank in diagnosis.ranks],
        "rank_skew": plain(diagnosis.skew),
        "between_ranks": _between(diagnosis.between),
        "odd_parts": plain(diagnosis.odd_parts),
        "findings": [finding_to_dict(finding) for finding in diagnosis.findings],
        "trials": plain(diagnosis.run.trials),
        "problems": list(diagnosis.run.problems),
        "notes": list(diagnosis.notes),
    }


def _rank(rank: RankSummary, diagnosis: Diagnosis) -> dict[str, Any]:
    run = next(candidate for candidate in diagnosis.run.ranks if candidate.rank == rank.rank)
    manifest = run.manifest
    summary = rank.steps
    steps: dict[str, Any] | None = None
    if summary is not None:
        steps = {
            key: item
            for key, item in plain(summary).items()
            if key not in {"steps", "excluded", "partition"}
        }
        steps["scope"] = {
            "steps": list(summary.steps),
            "excluded": plain(summary.excluded),
        }
        steps["partition"] = partition_to_dict(summary.partition)
    trace = _trace(rank)
    return {
        "rank": rank.rank,
        "state": manifest.state if manifest else None,
        "ended": manifest.ended if manifest else None,
        "windows": [plain(window) for window in manifest.windows] if manifest else [],
        "capture_problems": [plain(item) for item in manifest.problems] if manifest else [],
        "step_ns": rank.step_ns,
        "purpose": plain(rank.purpose),
        "together_ns": rank.together_ns,
        "ladder": {**plain(rank.ladder), "next_limit": rank.next_limit()},
        "step_record": steps,
        "trace": trace,
        "metrics": None if rank.metrics is None else metrics.to_json(rank.metrics),
        "notes": list(rank.notes),
    }


def _trace(rank: RankSummary) -> dict[str, Any] | None:
    """The recorded window: the GPUs' steps if there is GPU work, else the main thread's."""
    path = str(rank.window.trace_path) if rank.window else None
    if rank.scope is None:
        return None
    if rank.device is not None and rank.device_steps is not None and rank.critical_path is not None:
        return {
            "path": path,
            "scope": scope_to_dict(rank.scope),
            "partition": partition_to_dict(rank.device),
            "steps": plain(rank.device_steps.to_dicts()),
            "critical_path": partition_to_dict(rank.critical_path),
            "compute": plain(rank.compute),
        }
    if rank.host is None:
        return None
    return {
        "path": path,
        "scope": {
            **scope_to_dict(rank.scope),
            "steps": list(rank.scope.steps),
        },
        "partition": partition_to_dict(rank.host.partition),
        "steps": rank.host.steps.to_dicts(),
        "compute": plain(rank.compute),
    }


def _between(between: RankComparison | None) -> dict[str, Any] | None:
    """What the ranks' traces show together.

    Per step: `wait_ns`, what waiting costs a rank, and `own_ns`, its step without that.
    """
    if between is None:
        return None
    report = between.report
    return {
        "straggler": between.straggler,
        "steps": between.steps,
        "clock": report.clock.value,
        "clock_reason": report.clock_reason,
        "matched_by": report.matched_by,
        "ranks": plain(between.table),
        "scope": scope_to_dict(report.scope),
    }


def partition_to_dict(partition: Partition) -> dict[str, Any]:
    """A division of steps, with the share of each part."""
    return {
        "basis": partition.basis,
        "steps": partition.steps,
        "total_ns": partition.total_ns,
        "parts": [
            {"name": part.name, "total_ns": part.total_ns, "share": partition.share(part)}
            for part in partition.parts
        ],
    }
