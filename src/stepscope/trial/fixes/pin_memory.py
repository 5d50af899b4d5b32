"""Load batches into pinned memory, from which the GPU copies directly."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan
from stepscope.trial.fixes.loaders import change_loaders


def _plan(facts: Facts) -> Plan | str:
    if not facts.uses_gpu:
        return "no GPU is in use"
    if facts.loader_workers is None:
        return "the script builds no DataLoader that the training uses"
    return Plan(True, "pin_memory=True", ("DataLoader(..., pin_memory=True)",))


def _apply(patches: Patches, value: Any) -> None:
    change_loaders(patches, {"pin_memory": value})


FIX = Fix(
    name="pin-memory",
    title="load batches into pinned memory",
    answers=("pageable-copies", "exposed-copies"),
    applies_to="scripts with a DataLoader that train on a GPU",
    risks="memory of the host that cannot be swapped out",
    plan=_plan,
    apply=_apply,
    promised_by=("pageable-copies",),
)
