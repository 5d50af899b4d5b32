"""Prepare batches in worker processes, or in more of them."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan
from stepscope.trial.fixes.loaders import INPUT_BOUND, change_loaders


def _plan(facts: Facts) -> Plan | str:
    if facts.loader_workers is None:
        return "the script builds no DataLoader that the training uses"
    spare = max(1, facts.cpus // facts.local_ranks - 1)
    number = facts.workers_advised or spare
    if number <= facts.loader_workers:
        return f"its loader has {facts.loader_workers} workers already"
    alone = facts.workers_alone_ratio
    return Plan(
        number,
        f"num_workers {facts.loader_workers} → {number}",
        (f"DataLoader(..., num_workers={number}, persistent_workers=True)",),
        promised_ratio=alone,
        promise_basis="" if alone is None else f"{number} workers alone cannot keep up",
    )


def _apply(patches: Patches, number: Any) -> None:
    change_loaders(patches, {"num_workers": number, "persistent_workers": True})


FIX = Fix(
    name="loader-workers",
    title="prepare batches in worker processes",
    answers=(INPUT_BOUND,),
    applies_to="scripts with a DataLoader over a data set with a length",
    risks="more memory on the host; random augmentations are drawn in another order",
    plan=_plan,
    apply=_apply,
    promised_by=(INPUT_BOUND,),
    redraws=True,
)
