"""What the fixes of DistributedDataParallel share."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Fix, Patches, Plan


def ddp_fix(name: str, title: str, argument: str, value: Any, risks: str) -> Fix:
    """A fix that makes each DistributedDataParallel of the script with another argument.

    Args:
        name: Name of the fix.
        title: What it does.
        argument: The argument.
        value: Its value.
        risks: What it may cost.
    """
    changes = f"{argument}={value!r}"

    def plan(facts: Facts) -> Plan | str:
        if not facts.is_distributed:
            return "the script does not train with several ranks"
        return Plan(
            value,
            changes,
            (f"DistributedDataParallel(..., {changes})",),
            promise_basis="the findings promise what hiding all communication saves",
        )

    def apply(patches: Patches, wanted: Any) -> None:
        from torch.nn.parallel import DistributedDataParallel

        def change(said: dict[str, Any]) -> dict[str, Any] | None:
            return None if said[argument] == wanted else {argument: wanted}

        patches.arguments(DistributedDataParallel, change)

    return Fix(
        name=name,
        title=title,
        answers=("exposed-communication", "poor-overlap"),
        applies_to="models in DistributedDataParallel",
        risks=risks,
        plan=plan,
        apply=apply,
    )
