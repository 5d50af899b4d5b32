"""What the diagnosis of the script as it is says to the fixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.finding import Finding
from stepscope.advice.rules import input_bound, slow_epoch_start
from stepscope.run.trials import UntriedRecord
from stepscope.trial.fixes import FIXES
from stepscope.trial.fixes.fix import Facts


def facts_of(diagnosis: Diagnosis, process: Mapping[str, Any], doubt: str = "") -> Facts:
    """The facts that fixes are planned with.

    Args:
        diagnosis: The script as it is.
        process: What its process reported; see `trial.inside.companion`.
        doubt: Why nothing that the diagnosis promises can be relied on; empty if it can.
    """
    loader = None
    for rank in diagnosis.run.ranks:
        if rank.manifest is not None and rank.manifest.loader is not None:
            loader = rank.manifest.loader
            break
    promises: dict[str, float] = {}
    for finding in diagnosis.findings:
        ratio = promised_ratio(finding)
        if ratio is not None and not doubt:
            promises.setdefault(finding.id, ratio)
    by_id = {finding.id: finding for finding in reversed(diagnosis.findings)}
    inputs, starts = by_id.get(input_bound.ID), by_id.get(slow_epoch_start.ID)
    workers = _evidence(inputs, input_bound.WORKERS_LABEL)
    alone_ns = _evidence(inputs, input_bound.ALONE_LABEL)
    step_ns = diagnosis.shown.step_ns
    return Facts(
        findings=frozenset(finding.id for finding in diagnosis.findings),
        promises=promises,
        doubt=doubt,
        workers_advised=None if workers is None else int(workers),
        workers_alone_ratio=alone_ns / step_ns if alone_ns and step_ns and not doubt else None,
        workers_kept_ratio=None if doubt else _kept_ratio(starts),
        loader_workers=None if loader is None else loader.workers,
        prefetch_factor=None if loader is None else loader.prefetch_factor,
        threads=process.get("threads", 1),
        cpus=process.get("cpus", 1),
        local_ranks=process.get("local_ranks", 1),
        is_distributed=process.get("is_distributed", False),
        uses_gpu=process.get("uses_gpu", False),
        optimizers=tuple(process.get("optimizers", ())),
        zeroes_gradients=process.get("zeroes_gradients"),
    )


def promised_ratio(finding: Finding) -> float | None:
    """The step after a finding's fix over the step before; None if it promises nothing."""
    if finding.saving_ns is None or finding.predicted_step_ns is None:
        return None
    before_ns = finding.predicted_step_ns + finding.saving_ns
    return finding.predicted_step_ns / before_ns if before_ns > 0 else None


def _kept_ratio(starts: Finding | None) -> float | None:
    """The step with workers that live on over the step as it is; None if that is unknown."""
    kept_ns = _evidence(starts, slow_epoch_start.KEPT_LABEL)
    if starts is None or kept_ns is None or starts.predicted_step_ns is None:
        return None
    step_ns = starts.predicted_step_ns + (starts.saving_ns or 0)
    return 1 - kept_ns / step_ns if step_ns > 0 else None


def untried_of(
    findings: Sequence[Finding], tried: Sequence[str], promises: Mapping[str, float]
) -> tuple[UntriedRecord, ...]:
    """The findings that no fix answers which is tried.

    Args:
        findings: The findings of the script as it is.
        tried: Names of the fixes that are tried.
        promises: Finding to the step after its fix over the step before.
    """
    answered = {answer for name in tried for answer in FIXES[name].answers}
    left: dict[str, UntriedRecord] = {}
    for finding in findings:
        if finding.id not in answered:
            promised = promises.get(finding.id)
            left.setdefault(finding.id, UntriedRecord(finding.id, finding.advice, promised))
    return tuple(left.values())


def _evidence(finding: Finding | None, label: str) -> float | None:
    for item in () if finding is None else finding.evidence:
        if item.label == label and not isinstance(item.value, str):
            return float(item.value)
    return None
