"""Let the optimizer update a tensor in one pass, or many tensors in one kernel."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan
from stepscope.trial.fixes.optimizers import GROUP, change_optimizers, lines_with


def _plan(facts: Facts) -> Plan | str:
    return Plan(True, "fused=True", lines_with(facts, "fused=True"))


def _apply(patches: Patches, value: Any) -> None:
    change_optimizers(patches, {"fused": value, "foreach": None})


FIX = Fix(
    name="fused-optimizer",
    title="update parameters with a fused optimizer",
    answers=("unfused-optimizer", "launch-bound"),
    applies_to="Adam, AdamW, SGD and Adagrad of torch",
    risks="rounds differently; not with optimizers that other code steps through",
    plan=_plan,
    apply=_apply,
    group=GROUP,
    promised_by=("unfused-optimizer",),
)
