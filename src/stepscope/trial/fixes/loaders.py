"""What the fixes of loaders share."""

from __future__ import annotations

from typing import Any

from stepscope.trial.fixes.fix import Patches

INPUT_BOUND = "input-bound"


def change_loaders(patches: Patches, wanted: dict[str, Any], *, least_workers: int = 0) -> None:
    """Make each DataLoader of the script with other arguments.

    Args:
        patches: Changes the process.
        wanted: Arguments and their values.
        least_workers: Loaders with fewer workers are left alone.
    """
    from torch.utils.data import DataLoader, IterableDataset

    def change(said: dict[str, Any]) -> dict[str, Any] | None:
        if said["num_workers"] < least_workers:
            patches.refuse("its loader has no workers")
            return None
        adds_workers = wanted.get("num_workers", 0) > said["num_workers"]
        if adds_workers and isinstance(said["dataset"], IterableDataset):
            patches.refuse("an iterable data set would yield each sample once per worker")
            return None
        changes = {name: value for name, value in wanted.items() if said[name] != value}
        return changes or None

    patches.arguments(DataLoader, change)
