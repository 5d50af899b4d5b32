"""Which steps are recorded: pure arithmetic on step numbers counted from 0."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NEVER = 1 << 62
"""A number that no step reaches."""


class Action(Enum):
    """What the capture does during a step."""

    NONE = "none"
    WARMUP = "warmup"
    """The profiler runs but its events are discarded: its start-up cost falls here."""
    RECORD = "record"
    RECORD_AND_SAVE = "record_and_save"
    """The last step of a window."""


@dataclass(frozen=True)
class Schedule:
    """Cycles of waiting, warming up and recording, after some skipped steps.

    Attributes:
        skip_first: Number of steps before the first cycle.
        wait: Number of steps at the start of each cycle in which nothing happens.
        warmup: Number of warm-up steps that follow.
        active: Number of recorded steps, which end the cycle; at least 1.
        repeat: Number of cycles; 0 for no limit.
        skips_first_wait: Whether the first cycle begins with its warm-up, without waiting.
    """

    skip_first: int
    wait: int
    warmup: int
    active: int
    repeat: int
    skips_first_wait: bool = False

    @property
    def cycle(self) -> int:
        """Number of steps in a cycle."""
        return self.wait + self.warmup + self.active

    def action(self, step: int) -> Action:
        """What to do during a step."""
        position = self._position(step)
        if position is None or position < self.wait:
            return Action.NONE
        if position < self.wait + self.warmup:
            return Action.WARMUP
        return Action.RECORD if position < self.cycle - 1 else Action.RECORD_AND_SAVE

    def next_action(self, step: int) -> int:
        """The first step from `step` on with something to do, or `NEVER`."""
        step = max(step, self.skip_first)
        cycles, position = divmod(step - self._origin, self.cycle)
        if self.repeat and cycles >= self.repeat:
            return NEVER
        if position >= self.wait:
            return step
        return step + self.wait - position

    def next_save(self, step: int) -> int:
        """The first step from `step` on that ends a window, or `NEVER`."""
        cycles = max(0, step - self._origin) // self.cycle
        return NEVER if self.repeat and cycles >= self.repeat else self.recorded_steps(cycles)[-1]

    def window(self, step: int) -> int | None:
        """Index of the window that ends the step's cycle; None outside all cycles."""
        return None if self._position(step) is None else (step - self._origin) // self.cycle

    def recorded_steps(self, window: int) -> range:
        """The steps that a window records."""
        end = self._origin + (window + 1) * self.cycle
        return range(end - self.active, end)

    def first_end(self) -> int:
        """Number of steps that a loop needs for its first complete window."""
        return self._origin + self.cycle

    def first_quiet_step(self, first: int) -> int:
        """The first step from `first` on in which nothing is recorded; `first` if there is none."""
        # If a cycle waits, one of the next two does; if none waits, all must have passed.
        for step in range(first, max(first, self.first_end()) + self.cycle + 1):
            if self.action(step) is Action.NONE:
                return step
        return max(first, self._origin + self.repeat * self.cycle) if self.repeat else first

    def room_for(self, first: int, steps: int, warmup: int) -> int:
        """Where a window can begin, with its warm-up, without overlapping the scheduled ones.

        Args:
            first: The earliest step to record.
            steps: Number of steps to record.
            warmup: Number of warm-up steps before them.

        Returns:
            The first suitable step from `first` on, or `first` if the next cycle has no room.
        """
        start = first
        while start <= max(first, self.first_end()) + self.cycle:
            busy = [
                step
                for step in range(start - warmup, start + steps)
                if self.action(step) is not Action.NONE
            ]
            if not busy:
                return start
            start = busy[-1] + 1 + warmup
        return first

    @property
    def _origin(self) -> int:
        """Where the first cycle would begin if it waited; nothing is done before it."""
        return self.skip_first - (self.wait if self.skips_first_wait else 0)

    def _position(self, step: int) -> int | None:
        if step < self.skip_first:
            return None
        cycles, position = divmod(step - self._origin, self.cycle)
        return None if self.repeat and cycles >= self.repeat else position
