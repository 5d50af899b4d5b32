"""A view of memory, with the history of each device arranged so that any part of it can be drawn.

A part is divided into columns of equal width. A column shows the moment in it at which the program
held most, so that no peak is lost, as `memory.questions.timeline` does; a column in which nothing
happened shows what held before. At that moment the categories sum to the allocated bytes.

Millions of allocations cannot be drawn one by one. The largest in the part, by size times the
columns they are in, are drawn; the others are what is left of their category.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.categories.kinds import STACKED
from stepscope.memory.questions.over_time import HeldBytes, has_times, programs_own, times_of
from stepscope.memory.replay.arrays import Int64Array
from stepscope.memory.view import START, MemoryView
from stepscope.trace.arrays.time_columns import time_columns
from stepscope.viewer.background import Background
from stepscope.viewer.encoding import encode

MOST_COLUMNS = 2048
MOST_DRAWN = 400
"""Allocations that are drawn one by one."""
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Columns:
    """Part of a history.

    Attributes:
        start: Where the first column begins, on the axis.
        step: How wide a column is.
        event: The moment that each column shows: the last event that had happened.
        allocated_bytes: What the program held then.
        reserved_bytes: The most that was reserved within the column.
        categories: What it held by category, in the order of `STACKED`: one row per category.
        allocation: The allocations that are drawn, the oldest first.
        category: The place of each in `STACKED`.
        last: The column after the last.
        size_bytes: The size of each, rounded.
        others: How many more allocations the columns show.
    """

    start: int
    step: int
    event: Int64Array
    allocated_bytes: Int64Array
    reserved_bytes: Int64Array
    categories: npt.NDArray[np.int64]
    allocation: Int64Array
    category: npt.NDArray[np.uint8]
    first: Int64Array
    last: Int64Array
    size_bytes: Int64Array
    others: int


class DeviceHistory:
    """The history of one device.

    Times count from `origin_ns`.
    """

    def __init__(self, view: MemoryView, device: int, origin_ns: int) -> None:
        self.view = view
        self.device = device
        self.origin_ns = origin_ns
        curve = view.curve(device)
        self.event = curve["event"].to_numpy()
        self.allocated_bytes = curve["allocated_bytes"].to_numpy()
        self.reserved_bytes = curve["reserved_bytes"].to_numpy()
        self._curve = curve

    @cached_property
    def has_times(self) -> bool:
        """Whether its events have times; without them the axis counts events."""
        return has_times(self._curve)

    @cached_property
    def time_ns(self) -> Int64Array:
        """The time of each row, from the origin on; the first row has that of the first event."""
        return times_of(self._curve) - self.origin_ns

    def axis(self, by_event: bool) -> Int64Array:
        """Where each row lies: its time, or its number.

        Raises:
            UsageError: The events have no times.
        """
        if by_event:
            return np.arange(len(self.event), dtype=np.int64)
        if not self.has_times:
            raise UsageError("the events of this snapshot have no times: choose events as the axis")
        return self.time_ns

    @cached_property
    def _held(self) -> tuple[HeldBytes, ...]:
        mine = self.view.allocations.filter(pl.col("device") == self.device)
        return tuple(
            HeldBytes.of(mine.filter(pl.col("category") == category)) for category in STACKED
        )

    @cached_property
    def _own(self) -> pl.DataFrame:
        """What the program held, the oldest first."""
        mine = programs_own(self.view.allocations.filter(pl.col("device") == self.device))
        return mine.select(
            "allocation",
            "size_bytes",
            pl.col("category").cast(pl.Enum(STACKED)).to_physical().cast(pl.UInt8),
            begin=pl.col("start_event").fill_null(START),
            end=pl.col("free_event").fill_null(_NEVER),
        ).sort("begin", "allocation")

    def row_of(self, event: int) -> int:
        """The row after an event: its place on the axis that counts events."""
        return max(0, int(np.searchsorted(self.event, event, side="right")) - 1)

    def row_at(self, time_ns: int) -> int:
        """The last row at a time."""
        return max(0, int(np.searchsorted(self.time_ns, time_ns, side="right")) - 1)

    def columns(self, by_event: bool, start: int, end: int, number: int) -> Columns:
        """Draws part of the history.

        Args:
            by_event: Whether the axis counts events.
            start: The beginning of the part, on the axis.
            number: How many columns, at most.
        """
        at = self.axis(by_event)
        held, reserved = self.allocated_bytes, self.reserved_bytes
        found = time_columns(at, held, reserved, start, end, number)
        events = self.event[found.rows]
        return Columns(
            found.start,
            found.step,
            events,
            held[found.rows],
            found.reserved_bytes,
            np.stack([held.after(events) for held in self._held]),
            *self._drawn(events),
        )

    def _drawn(
        self, events: Int64Array
    ) -> tuple[Int64Array, npt.NDArray[np.uint8], Int64Array, Int64Array, Int64Array, int]:
        own = self._own
        size = own["size_bytes"].to_numpy()
        # Each is held from its first event to its last, so it is in columns that follow each other.
        first = np.searchsorted(events, own["begin"].to_numpy(), side="left")
        last = np.searchsorted(events, own["end"].to_numpy(), side="left")
        shown = np.flatnonzero((last > first) & (size > 0))
        weight = size[shown].astype(np.float64) * (last[shown] - first[shown])
        if len(shown) > MOST_DRAWN:
            chosen = np.sort(np.argpartition(weight, -MOST_DRAWN)[-MOST_DRAWN:])
        else:
            chosen = np.arange(len(shown))
        drawn = shown[chosen]
        return (
            own["allocation"].to_numpy()[drawn],
            own["category"].to_numpy()[drawn],
            first[drawn],
            last[drawn],
            size[drawn],
            len(shown) - len(drawn),
        )


def encode_columns(found: Columns, about: dict[str, Any]) -> bytes:
    """Columns as bytes, in the format of `encoding.py`.

    Bytes are float64, which holds them exactly up to 2**53. `categories` has the columns of the
    first category, then those of the second, and so on.

    Args:
        about: What else to say of them.
    """
    meta = {
        **about,
        "start": found.start,
        "step": found.step,
        "columns": len(found.event),
        "others": found.others,
    }
    return encode(
        meta,
        {
            "event": found.event.astype(np.float64),
            "allocated": found.allocated_bytes.astype(np.float64),
            "reserved": found.reserved_bytes.astype(np.float64),
            "categories": found.categories.astype(np.float64).reshape(-1),
            "allocation": found.allocation.astype(np.float64),
            "category": found.category,
            "first": found.first.astype(np.uint32),
            "last": found.last.astype(np.uint32),
            "size": found.size_bytes.astype(np.float64),
        },
    )


class MemoryContent:
    """Memory that is ready.

    Attributes:
        view: What questions are asked of.
        asking: Held while a question is answered, so that nothing is worked out twice.
    """

    def __init__(self, view: MemoryView) -> None:
        self.view = view
        self.asking = threading.RLock()
        self._histories: dict[int, DeviceHistory] = {}

    def history(self, device: int | None) -> DeviceHistory:
        """The history of a device; None: of the fullest.

        Raises:
            UsageError: The snapshot has nothing of it.
        """
        with self.asking:
            chosen = self.view.device(device)
            if chosen not in self._histories:
                self._histories[chosen] = DeviceHistory(self.view, chosen, self.view.origin_ns)
            return self._histories[chosen]


def memory_of(read: Callable[[], MemoryView]) -> Background[MemoryContent]:
    """Memory that is read in the background when it is first looked at."""

    def work(enter: Callable[[str], None]) -> MemoryContent:
        content = MemoryContent(read())
        enter("arranging")
        history = content.history(None)
        history.columns(not history.has_times, 0, 1, 1)  # arranges the allocations
        return content

    return Background("memory", work)
