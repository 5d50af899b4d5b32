"""The clock of a rank."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """One clock per rank: epoch time read once, then advanced by the monotonic clock.

    Attributes:
        epoch_ns: Nanoseconds since the epoch at the anchor.
        monotonic_ns: `time.perf_counter_ns()` at the anchor.
    """

    epoch_ns: int
    monotonic_ns: int

    @classmethod
    def start(cls) -> Clock:
        """Read both clocks now."""
        return cls(time.time_ns(), time.perf_counter_ns())

    def epoch(self, monotonic_ns: int) -> int:
        """Epoch nanoseconds of a time of the monotonic clock."""
        return self.epoch_ns + monotonic_ns - self.monotonic_ns
