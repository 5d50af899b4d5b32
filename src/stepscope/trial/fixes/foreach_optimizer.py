"""Let the optimizer update many tensors with each operator."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan
from stepscope.trial.fixes.optimizers import GROUP, change_optimizers, lines_with


def _plan(facts: Facts) -> Plan | str:
    return Plan(
        True,
        "foreach=True",
        lines_with(facts, "foreach=True"),
        promise_basis="the finding promises what a fused optimizer saves",
    )


def _apply(patches: Patches, value: Any) -> None:
    change_optimizers(patches, {"foreach": value})


FIX = Fix(
    name="foreach-optimizer",
    title="update parameters with an optimizer that takes many tensors at once",
    answers=("unfused-optimizer", "launch-bound"),
    applies_to="most optimizers of torch",
    risks="needs memory for copies of the parameters; rounds differently",
    plan=_plan,
    apply=_apply,
    group=GROUP,
)
