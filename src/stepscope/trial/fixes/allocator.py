"""Give the GPU's caching allocator the settings that the simulation of its memory favours."""

from __future__ import annotations

import os
from typing import Any

from stepscope.trial.fixes.fix import AllocatorChoice, Facts, Fix, Patches, Plan

VARIABLE = "PYTORCH_CUDA_ALLOC_CONF"
VARIABLES = (VARIABLE, "PYTORCH_ALLOC_CONF")
"""Where torch reads the settings. Torch 2.9 and later read both, earlier ones the first."""


def _plan(facts: Facts) -> Plan | str:
    if not facts.uses_gpu:
        return "no GPU is in use"
    choice = facts.allocator
    if not isinstance(choice, AllocatorChoice):
        return choice or "the memory of the script was not simulated"
    return Plan(
        choice.value,
        choice.settings,
        (f"{VARIABLE}={choice.value}  # in the environment",),
        promise_basis=choice.basis,
        promised_reserved_bytes=choice.reserved_bytes,
        promised_retries=choice.retries,
        environment=dict.fromkeys(VARIABLES, choice.value),
    )


def _apply(patches: Patches, value: Any) -> None:
    import torch

    # The allocator reads the variable of the process before the script begins.
    if os.environ.get(VARIABLE) != value:
        patches.refuse(f"the command sets {VARIABLE} itself")
        return

    def keep(wanted: str) -> None:
        patches.override(f"{patches.place()}: _set_allocator_settings({wanted!r})")

    patches.replace(torch.cuda.memory, "_set_allocator_settings", lambda _: keep)
    patches.did(f"{VARIABLE}={value}")


FIX = Fix(
    name="allocator-settings",
    title="give the CUDA allocator the settings that the simulation of its memory favours",
    answers=(
        "allocator-churn",
        "memory-fragmented",
        "reserved-without-bound",
        "out-of-memory",
        "memory-near-limit",
    ),
    applies_to="GPUs, if a simulated setting saves 5% of the reserved memory, or retries",
    risks="expandable segments cannot be shared between processes",
    plan=_plan,
    apply=_apply,
)
