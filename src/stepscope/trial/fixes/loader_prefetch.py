"""Let each worker of a loader prepare more batches ahead."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan
from stepscope.trial.fixes.loaders import INPUT_BOUND, change_loaders

_TIMES = 4


def _plan(facts: Facts) -> Plan | str:
    if not facts.loader_workers:
        return "its loader has no workers"
    before = facts.prefetch_factor or 2
    factor = _TIMES * before
    return Plan(
        factor,
        f"prefetch_factor {before} → {factor}",
        (f"DataLoader(..., prefetch_factor={factor})",),
        promise_basis="evens out bursts of waits; no finding says what that saves",
    )


def _apply(patches: Patches, factor: Any) -> None:
    change_loaders(patches, {"prefetch_factor": factor}, least_workers=1)


FIX = Fix(
    name="loader-prefetch",
    title="let loader workers prepare more batches ahead",
    answers=(INPUT_BOUND,),
    applies_to="scripts whose DataLoader has workers",
    risks="more memory on the host",
    plan=_plan,
    apply=_apply,
)
