"""Let the host go on while batches are copied to the GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan


def _plan(facts: Facts) -> Plan | str:
    if not facts.uses_gpu:
        return "no GPU is in use"
    return Plan(
        ["cuda"],
        "non_blocking=True in copies from pinned memory",
        ("batch = batch.to(device, non_blocking=True)",),
        promise_basis="the findings promise what pinned memory and copies beside the step save",
    )


def _apply(patches: Patches, kinds: Any) -> None:
    import torch

    def wrap(move: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(move)
        def moved(tensor: Any, *arguments: Any, **keywords: Any) -> Any:
            if tensor.is_pinned() and "non_blocking" not in keywords and len(arguments) <= 1:
                target = keywords.get("device", arguments[0] if arguments else None)
                if _kind(target) in kinds:
                    patches.did(f"{patches.place()}: non_blocking=True")
                    keywords["non_blocking"] = True
            return move(tensor, *arguments, **keywords)

        return moved

    patches.replace(torch.Tensor, "to", wrap)


def _kind(target: Any) -> str:
    """The kind of device that `Tensor.to` is to copy to; empty for anything else."""
    import torch

    if isinstance(target, int) and not isinstance(target, bool):
        return "cuda"
    if isinstance(target, str):
        return target.partition(":")[0]
    return target.type if isinstance(target, torch.device) else ""


FIX = Fix(
    name="non-blocking",
    title="copy from pinned memory without waiting",
    answers=("exposed-copies", "synchronisation"),
    applies_to="batches in pinned memory that Tensor.to moves to a GPU",
    risks="memory that the script changes right after the copy may arrive changed",
    plan=_plan,
    apply=_apply,
)
