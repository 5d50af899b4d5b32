"""Drop gradients instead of filling them with zeros."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan


def _plan(facts: Facts) -> Plan | str:
    if facts.zeroes_gradients is False:
        return "the script drops gradients already"
    return Plan(
        True,
        "zero_grad(set_to_none=True)",
        ("optimizer.zero_grad(set_to_none=True)",),
    )


def _apply(patches: Patches, value: Any) -> None:
    from torch import nn, optim

    def wrap(zero_grad: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(zero_grad)
        def dropped(owner: Any, set_to_none: bool = True) -> None:
            if not set_to_none:
                where = patches.place()
                patches.did(f"{where}: zero_grad")
                patches.override(f"{where}: set_to_none=False")
            zero_grad(owner, set_to_none=value)

        return dropped

    patches.replace(optim.Optimizer, "zero_grad", wrap)
    patches.replace(nn.Module, "zero_grad", wrap)


FIX = Fix(
    name="zero-grad-none",
    title="drop gradients instead of filling them with zeros",
    answers=(
        "zeroed-gradients",
        "unfused-optimizer",
        "launch-bound",
        "many-small-kernels",
        "fusible-pattern",
        "unfused-elementwise",
    ),
    applies_to="scripts that call zero_grad(set_to_none=False)",
    risks="code that reads .grad after zero_grad finds None; parameters without a gradient are "
    "left alone by the optimizer",
    plan=_plan,
    apply=_apply,
    promised_by=("zeroed-gradients",),
)
