"""The plan of a window."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class WindowPlan:
    """What a window should record.

    Attributes:
        index: Its number.
        first_step: The first step to record.
        steps: Number of steps to record.
        directory: Where its files go.
        cause: What requested it.
        note: How the plan was changed, and why; empty if it was not.
        with_stack: Whether Python stacks are recorded.
        with_memory: Whether a memory snapshot is taken at its end.
        details: Options that are off in the capture and on in this window.
    """

    index: int
    first_step: int
    steps: int
    directory: Path
    cause: str = "schedule"
    note: str = ""
    with_stack: bool = False
    with_memory: bool = False
    details: tuple[str, ...] = ()

    @property
    def last_step(self) -> int:
        """The last step to record."""
        return self.first_step + self.steps - 1
