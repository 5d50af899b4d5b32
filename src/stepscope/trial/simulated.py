"""Which settings of the GPU's allocator are worth a run, by simulation of a memory snapshot."""

from __future__ import annotations

import os
from pathlib import Path

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.memory.allocator.settings import with_settings
from stepscope.memory.opening import find_snapshot
from stepscope.memory.questions.settings import SettingsAnswer
from stepscope.memory.questions.settings import settings as simulate_settings
from stepscope.report import units
from stepscope.trial.fixes.allocator import VARIABLES
from stepscope.trial.fixes.fix import AllocatorChoice


def choose_settings(path: str) -> AllocatorChoice | str:
    """The settings that are worth a run; or, as text, why none are.

    Args:
        path: A memory snapshot, or a run with one; of a run, its first rank with a snapshot.

    Raises:
        UnreadableInputError: There is no snapshot, or it cannot be read.
        UsageError: It has no history that could be simulated.
    """
    answer = simulate_settings(find_snapshot(path).open())
    better = answer.worth_a_run
    now = answer.recorded
    if not len(better):
        return (
            "of the simulated settings, none saves 5% of the "
            f"{units.size(now['peak_reserved_bytes'])} that the allocator reserves, or a retry"
        )
    best = better.row(0, named=True)
    basis = (
        f"by simulation it reserves {units.size(best['peak_reserved_bytes'])} at the peak instead "
        f"of {units.size(now['peak_reserved_bytes'])}, with {best['retries']:,} retries instead "
        f"of {now['retries']:,}"
    )
    before = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), "")
    return AllocatorChoice(
        with_settings(before, best["settings"]),
        best["settings"],
        best["peak_reserved_bytes"],
        best["retries"],
        basis + _doubt(answer),
    )


def recorded_settings(run: Path) -> AllocatorChoice | str:
    """The same for a run that recorded its memory; text as well if there is no snapshot."""
    try:
        return choose_settings(str(run))
    except (UnreadableInputError, UsageError) as error:
        return f"the memory of the script could not be simulated: {error}"


def _doubt(answer: SettingsAnswer) -> str:
    """How far the simulation misses what was recorded; empty if it does not."""
    missed = answer.reproduction_error_share
    return f" (the model misses the recording by up to {missed:.1%})" if missed >= 0.001 else ""
