"""What is known of the unchanged script: from its diagnosis, and its GPU memory by simulation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.advice.diagnosis import Diagnosis
from stepscope.advice.finding import Finding
from stepscope.advice.rules.input import input_bound, slow_epoch_start
from stepscope.errors import UnreadableInputError, UsageError
from stepscope.memory.allocator.settings import with_settings
from stepscope.memory.opening import find_snapshots, open_snapshot
from stepscope.memory.questions.settings import SettingsAnswer
from stepscope.memory.questions.settings import settings as simulate_settings
from stepscope.opening.trials import UntriedRecord
from stepscope.report import units
from stepscope.run.manifest import LoaderRecord
from stepscope.trial.changes import ALLOCATOR_VARIABLES
from stepscope.trial.fixes import FIXES, Facts, Plan


def facts_of(diagnosis: Diagnosis, process: Mapping[str, Any], doubt: str = "") -> Facts:
    """The facts that fixes are planned with.

    Args:
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
    inputs, starts = by_id.get("input-bound"), by_id.get("slow-epoch-start")
    workers = _evidence(inputs, input_bound.WORKERS_LABEL)
    alone_ns = _evidence(inputs, input_bound.ALONE_LABEL)
    step_ns = diagnosis.shown.step_ns
    batch_ns = process.get("worker_batch_ns")
    return Facts(
        findings=frozenset(finding.id for finding in diagnosis.findings),
        promises=promises,
        doubt=doubt,
        workers_advised=None if workers is None else int(workers),
        workers_alone_ratio=alone_ns / step_ns if alone_ns and step_ns and not doubt else None,
        workers_kept_ratio=None if doubt else _kept_ratio(diagnosis, starts, loader, batch_ns),
        is_kept_ratio_bound=batch_ns is None,
        loader_workers=None if loader is None else loader.workers,
        prefetch_factor=None if loader is None else loader.prefetch_factor,
        loader_cpu_share=None if loader is None else loader.worker_cpu_share,
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
    return finding.predicted_step_ns / finding.step_ns if finding.step_ns > 0 else None


def _kept_ratio(
    diagnosis: Diagnosis, starts: Finding | None, loader: LoaderRecord | None, batch_ns: int | None
) -> float | None:
    """The step with persistent workers over the step without; None if that is unknown."""
    kept_ns = _evidence(starts, slow_epoch_start.KEPT_LABEL)
    if starts is None or kept_ns is None or starts.predicted_step_ns is None:
        return None
    steps = diagnosis.shown.steps
    if batch_ns is not None and steps is not None and loader is not None:
        saved_ns = steps.epoch_starts.kept_workers_save(loader.workers, batch_ns)
        kept_ns = saved_ns / len(steps.steps)
    return 1 - kept_ns / starts.step_ns if starts.step_ns > 0 else None


def untried_of(
    findings: Sequence[Finding], tried: Sequence[str], promises: Mapping[str, float]
) -> tuple[UntriedRecord, ...]:
    """The findings that no fix answers which is tried.

    Args:
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


# -- settings of the allocator --------------------------------------------------------------------


def recorded_settings(run: Path) -> Plan | str:
    """The settings that are worth a run, by the memory of its first rank with a snapshot.

    As text, why none are.
    """
    try:
        answer = simulate_settings(open_snapshot(find_snapshots(str(run))[-1]))
    except (UnreadableInputError, UsageError) as error:
        return f"the memory of the script could not be simulated: {error}"
    better = answer.worth_a_run
    now = answer.recorded
    if not len(better):
        return (
            "of the simulated settings, none saves 5% of the "
            f"{units.size(now['peak_reserved_bytes'])} that the allocator reserves, or a retry"
        )
    best = better.row(0, named=True)
    basis = (
        f"by simulation it reserves {units.size(best['peak_reserved_bytes'])} at the peak instead "
        f"of {units.size(now['peak_reserved_bytes'])}, with {best['retries']:,} retries instead "
        f"of {now['retries']:,}"
    )
    before = next((os.environ[name] for name in ALLOCATOR_VARIABLES if os.environ.get(name)), "")
    value = with_settings(before, best["settings"])
    return Plan(
        value,
        best["settings"],
        (f"{ALLOCATOR_VARIABLES[0]}={value}  # in the environment",),
        promise_basis=basis + _missed(answer),
        promised_reserved_bytes=best["peak_reserved_bytes"],
        promised_retries=best["retries"],
        environment=dict.fromkeys(ALLOCATOR_VARIABLES, value),
    )


def _missed(answer: SettingsAnswer) -> str:
    """How far the simulation misses what was recorded; empty if it does not."""
    missed = answer.reproduction_error_share
    return f" (the model misses the recording by up to {missed:.1%})" if missed >= 0.001 else ""
