"""A line on a terminal that notes what it would show."""

from __future__ import annotations

import io

from stepscope.terminal.working import WorkingLine


class Watched(WorkingLine):
    """A line that notes its stages."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.stages: list[str] = []
        self.left = 0

    def enter(self, what: str) -> None:
        """Notes a stage."""
        self.stages.append(what)

    def leave(self) -> None:
        """Counts the stages that have ended."""
        self.left += 1
