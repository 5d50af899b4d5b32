"""What a window is meant to record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WindowPlan:
    """What a window is meant to record.

    Attributes:
        index: Its number.
        first_step: Its first recorded step.
        steps: Number of steps to record.
        directory: Where its files go.
        cause: What opened it.
        note: What was changed of the plan, and why; empty otherwise.
        with_stack: Whether Python stacks are recorded.
        with_memory: Whether a memory snapshot is taken at its end.
    """

    index: int
    first_step: int
    steps: int
    directory: Path
    cause: str = "schedule"
    note: str = ""
    with_stack: bool = False
    with_memory: bool = False

    @property
    def last_step(self) -> int:
        """Its last recorded step."""
        return self.first_step + self.steps - 1
