"""What some allocations sum to after any event, without looking at each of them again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.replay.arrays import Int64Array
from stepscope.memory.view import START


@dataclass(frozen=True, eq=False)
class HeldBytes:
    """The bytes that the program held of some allocations, in rounded sizes.

    Attributes:
        begun: The events that made them, ascending; `START` for those from before the recording.
        begun_bytes: What they sum to up to each of these; one longer, beginning with 0.
        gone: The events that gave them back, ascending.
        gone_bytes: What they sum to up to each of these; one longer, beginning with 0.
    """

    begun: Int64Array
    begun_bytes: Int64Array
    gone: Int64Array
    gone_bytes: Int64Array

    @classmethod
    def of(cls, allocations: pl.DataFrame) -> HeldBytes:
        """Sums up allocations of one device.

        Args:
            allocations: Of a replay, or of a view.
        """
        held = programs_own(allocations)
        begun = held.select(pl.col("start_event").fill_null(START), "size_bytes").sort(
            "start_event"
        )
        gone = held.filter(pl.col("free_event").is_not_null()).sort("free_event")
        return cls(
            begun["start_event"].to_numpy(),
            _sums(begun["size_bytes"]),
            gone["free_event"].to_numpy(),
            _sums(gone["size_bytes"]),
        )

    def after(self, events: Int64Array) -> Int64Array:
        """What was held after each of some events."""
        begun = np.searchsorted(self.begun, events, side="right")
        gone = np.searchsorted(self.gone, events, side="right")
        held: Int64Array = self.begun_bytes[begun] - self.gone_bytes[gone]
        return held


def programs_own(allocations: pl.DataFrame) -> pl.DataFrame:
    """Those that the program held in the recording, not those that only waited for a stream."""
    return allocations.filter(~pl.col("is_given_back_before"))


def _sums(sizes: pl.Series) -> Int64Array:
    sums: Int64Array = np.append(np.int64(0), np.cumsum(sizes.to_numpy()))
    return sums
