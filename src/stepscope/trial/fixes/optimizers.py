"""What the fixes of optimizers share."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Facts, Patches

GROUP = "optimizer"
_LEFT_ALONE = {"Optimizer"}


def lines_with(facts: Facts, argument: str) -> tuple[str, ...]:
    """What to write for each optimizer that the script uses."""
    classes = facts.optimizers or ("OPTIMIZER",)
    return tuple(f"{name}(..., {argument})" for name in classes)


def change_optimizers(patches: Patches, wanted: dict[str, Any]) -> None:
    """Make each optimizer of torch that takes all of some arguments with them.

    Args:
        patches: Changes the process.
        wanted: Arguments and their values. An optimizer that has these already is left alone.
    """
    import inspect

    from torch import optim

    def change(said: dict[str, Any]) -> dict[str, Any] | None:
        return wanted if any(said[name] != value for name, value in wanted.items()) else None

    for name, kind in vars(optim).items():
        is_optimizer = isinstance(kind, type) and issubclass(kind, optim.Optimizer)
        if not is_optimizer or name in _LEFT_ALONE or "__init__" not in vars(kind):
            continue
        if set(wanted) <= set(inspect.signature(kind.__init__).parameters):
            patches.arguments(kind, change)
