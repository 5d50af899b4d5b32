"""Keep the workers of a loader alive between epochs."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan
from stepscope.trial.fixes.loaders import INPUT_BOUND, change_loaders


def _plan(facts: Facts) -> Plan | str:
    if not facts.loader_workers:
        return "its loader has no workers"
    return Plan(
        True,
        "persistent_workers=True",
        ("DataLoader(..., persistent_workers=True)",),
        promised_ratio=facts.workers_kept_ratio,
        promise_basis="slow-epoch-start, at most; an epoch's first batch may come sooner, too"
        if facts.workers_kept_ratio is not None
        else "no finding says what starting workers costs",
    )


def _apply(patches: Patches, value: Any) -> None:
    change_loaders(patches, {"persistent_workers": value}, least_workers=1)


FIX = Fix(
    name="persistent-workers",
    title="keep loader workers alive between epochs",
    answers=("slow-epoch-start", INPUT_BOUND, "stalled-step", "uneven-steps"),
    applies_to="scripts whose DataLoader has workers, with several epochs in the steps tried",
    risks=(
        "the workers keep their memory between epochs; from the second epoch on, random "
        "augmentations are drawn in another order"
    ),
    plan=_plan,
    apply=_apply,
    redraws=True,
)
