"""Let the CUDA caching allocator grow its segments instead of adding new ones."""

from __future__ import annotations

import os
from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan

_VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
_SETTING = "expandable_segments:True"


def _plan(facts: Facts) -> Plan | str:
    if not facts.uses_gpu:
        return "no GPU is in use"
    before = os.environ.get(_VARIABLE, "")
    if "expandable_segments" in before:
        return f"{_VARIABLE} has {before} already"
    value = ",".join(filter(None, (before, _SETTING)))
    return Plan(
        value,
        _SETTING,
        (f"{_VARIABLE}={value}  # in the environment",),
        promise_basis="the findings are about memory; none says what it does to the step",
        environment={_VARIABLE: value},
    )


def _apply(patches: Patches, value: Any) -> None:
    # The allocator reads the variable of the process before the script begins.
    if os.environ.get(_VARIABLE) == value:
        patches.did(f"{_VARIABLE}={value}")
    else:
        patches.refuse(f"the command sets {_VARIABLE} itself")


FIX = Fix(
    name="expandable-segments",
    title="let the CUDA allocator grow its segments",
    answers=("allocator-churn", "memory-fragmented", "out-of-memory", "memory-near-limit"),
    applies_to="NVIDIA GPUs",
    risks="not with memory that is shared between processes",
    plan=_plan,
    apply=_apply,
)
