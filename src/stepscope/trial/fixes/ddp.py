"""What the fixes of DistributedDataParallel share."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Patches

ANSWERS = ("exposed-communication", "poor-overlap")
APPLIES_TO = "models in DistributedDataParallel"


def why_not(facts: Facts) -> str:
    """Why these fixes do not apply; empty if they do."""
    return "" if facts.is_distributed else "the script does not train with several ranks"


def change_ddp(patches: Patches, wanted: dict[str, Any]) -> None:
    """Make each DistributedDataParallel of the script with other arguments."""
    from torch.nn.parallel import DistributedDataParallel

    def change(
        model: Any,  # noqa: ARG001 - `Patches.arguments` gives it
        said: dict[str, Any],
        given: set[str],  # noqa: ARG001
    ) -> dict[str, Any] | None:
        changes = {name: value for name, value in wanted.items() if said[name] != value}
        return changes or None

    patches.arguments(DistributedDataParallel, change)
