"""Let cuDNN try its algorithms and keep the fastest."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan


def _plan(facts: Facts) -> Plan | str:
    if not facts.uses_gpu:
        return "no GPU is in use"
    return Plan(
        True,
        "cudnn.benchmark",
        ("torch.backends.cudnn.benchmark = True",),
        promise_basis="no finding says what another algorithm saves",
    )


def _apply(patches: Patches, value: Any) -> None:
    import torch

    patches.assign(torch.backends.cudnn, "benchmark", value)
    patches.did("torch.backends.cudnn.benchmark = True")


FIX = Fix(
    name="cudnn-benchmark",
    title="let cuDNN try its algorithms and keep the fastest",
    answers=("slow-matmuls",),
    applies_to="convolutions of recurring shapes on NVIDIA GPUs",
    risks="each new shape takes a search; results differ from run to run in the last bits",
    plan=_plan,
    apply=_apply,
)
