"""Compute matrix products and convolutions of float32 in TF32."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan
from stepscope.trial.fixes.settings import hold


def _plan(facts: Facts) -> Plan | str:
    if not facts.uses_gpu:
        return "no GPU is in use"
    return Plan(
        "high",
        "TF32 in matrix products and convolutions",
        ('torch.set_float32_matmul_precision("high")', "torch.backends.cudnn.allow_tf32 = True"),
    )


def _apply(patches: Patches, precision: Any) -> None:
    import torch

    hold(patches, "float32_matmul_precision", precision)
    patches.assign(torch.backends.cudnn, "allow_tf32", True)


FIX = Fix(
    name="tf32",
    title="compute matrix products of float32 in TF32",
    answers=("full-precision-matmuls", "tensor-cores-unused", "slow-matmuls"),
    applies_to="float32 on GPUs from Ampere on",
    risks="products have 10 bits of mantissa instead of 23",
    plan=_plan,
    apply=_apply,
    promised_by=("full-precision-matmuls",),
)
