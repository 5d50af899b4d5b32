"""Memory over time as a picture shows it: held by category, reserved, and the peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.categories.kinds import STACKED
from stepscope.memory.questions.held_bytes import HeldBytes
from stepscope.memory.questions.time_columns import time_columns
from stepscope.memory.replay.arrays import Int64Array
from stepscope.memory.view import MemoryView

COLUMNS = 480
_MOST_STEPS = 480


@dataclass(frozen=True)
class Mark:
    """A moment in the picture.

    Attributes:
        at: Where it lies on the axis.
        allocated_bytes: What was held then.
        event: The last event that had happened; None where the file has no events.
    """

    at: int
    allocated_bytes: int
    event: int | None


@dataclass(frozen=True)
class OverTime:
    """Memory of one device over time, in columns of equal width.

    Attributes:
        device: The device in words, such as "GPU 0"; empty: the file does not say.
        is_by_event: Whether the axis counts events, for want of times; else it is in nanoseconds
            from the first event of the file on.
        start: Where the first column begins.
        step: How wide a column is.
        allocated_bytes: For each column the most that was held in it; a column in which nothing
            happened has what held before.
        reserved_bytes: The most that was reserved in it; None where there is no allocator that
            reserves memory, nobody recorded it, or the history of segments is incomplete: then
            more would be held than reserved.
        bands: What the allocated bytes are for: a name, and the bytes in each column. They sum to
            `allocated_bytes`.
        steps: Number and beginning of steps; of many steps, some.
        peak: When most was held.
        failed: When requests failed: at most one moment for each column.
        failures: How many requests failed.
    """

    device: str
    is_by_event: bool
    start: int
    step: int
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...] | None
    bands: tuple[tuple[str, tuple[int, ...]], ...]
    steps: tuple[tuple[int, int], ...]
    peak: Mark
    failed: tuple[Mark, ...]
    failures: int


def over_time(view: MemoryView, device: int | None = None) -> OverTime:
    """Draws what a device held over time.

    Args:
        view: The snapshot.
        device: The device; None: the fullest.
    """
    chosen = view.device(device)
    curve = view.curve(chosen)
    held, reserved = curve["allocated_bytes"].to_numpy(), curve["reserved_bytes"].to_numpy()
    events = curve["event"].to_numpy()
    has_times = len(curve) > 1 and curve["time_ns"][1:].null_count() == 0
    at = _times(curve) - view.origin_ns if has_times else np.arange(len(curve), dtype=np.int64)
    found = time_columns(at, held, reserved, int(at[0]), int(at[-1]) + 1, COLUMNS)
    mine = view.allocations.filter(pl.col("device") == chosen)
    bands = []
    for category in STACKED:
        of = HeldBytes.of(mine.filter(pl.col("category") == category)).after(events[found.rows])
        if of.any():
            bands.append((category, _numbers(of)))

    def mark(event: int) -> Mark:
        row = max(0, int(np.searchsorted(events, event, side="right")) - 1)
        return Mark(int(at[row]), int(held[row]), event)

    failed = [mark(event) for event in view.out_of_memory(chosen)["event"].to_list()]
    apart = {(one.at - found.start) // found.step: one for one in failed}
    return OverTime(
        device="the host" if chosen < 0 else f"GPU {chosen}",
        is_by_event=not has_times,
        start=found.start,
        step=found.step,
        allocated_bytes=_numbers(held[found.rows]),
        reserved_bytes=_numbers(found.reserved_bytes) if _is_known(reserved, held) else None,
        bands=tuple(bands),
        steps=_steps(view, chosen) if has_times else (),
        peak=mark(view.peak(chosen).event),
        failed=tuple(apart.values()),
        failures=len(failed),
    )


def _is_known(reserved: Int64Array, held: Int64Array) -> bool:
    return not (reserved == held).all() and not (reserved < held).any()


def _times(curve: pl.DataFrame) -> Int64Array:
    """The time of each row; the moment before the first event has that of the first."""
    times = curve["time_ns"].fill_null(strategy="backward").to_numpy()
    in_order: Int64Array = np.maximum.accumulate(times)  # clocks of threads differ a little
    return in_order


def _numbers(values: Int64Array) -> tuple[int, ...]:
    return tuple(map(int, values.tolist()))


def _steps(view: MemoryView, device: int) -> tuple[tuple[int, int], ...]:
    steps = view.categories.ranges.steps.filter(pl.col("device") == device).sort("start_ns")
    some = steps.gather_every(-(-max(len(steps), 1) // _MOST_STEPS))
    return tuple(
        (int(step), int(start) - view.origin_ns)
        for step, start in some.select("step", "start_ns").iter_rows()
    )
