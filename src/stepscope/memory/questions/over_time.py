"""Memory over time as a picture shows it: held by category or line, reserved, and the peak."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.categories.kinds import STACKED
from stepscope.memory.questions.composition import composition
from stepscope.memory.replay.arrays import Int64Array
from stepscope.memory.view import START, MemoryView
from stepscope.trace.arrays.time_columns import time_columns


@dataclass(frozen=True, eq=False)
class HeldBytes:
    """The bytes that the program held of some allocations.

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
    def of(cls, allocations: pl.DataFrame, size: str = "size_bytes") -> HeldBytes:
        """Sums up allocations of one device, by default in rounded sizes."""
        held = programs_own(allocations)
        begun = held.select(pl.col("start_event").fill_null(START), size).sort("start_event")
        gone = held.filter(pl.col("free_event").is_not_null()).sort("free_event")
        return cls(
            begun["start_event"].to_numpy(),
            _sums(begun[size]),
            gone["free_event"].to_numpy(),
            _sums(gone[size]),
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


COLUMNS = 480
MOST_LINES = 10
"""Lines that have a colour of their own."""
_OTHER_LINES = "other lines"
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
        device: Its name, such as "GPU 0"; empty: the file does not say.
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
        lines: How many bands, from the first on, are lines of the program, where one more has all
            others; 0: the bands are categories.
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
    lines: int = 0


def over_time(view: MemoryView, device: int | None = None) -> OverTime:
    """Draws what a device held over time."""
    chosen = view.device(device)
    curve = view.curve(chosen)
    held, reserved = curve["allocated_bytes"].to_numpy(), curve["reserved_bytes"].to_numpy()
    events = curve["event"].to_numpy()
    is_timed = has_times(curve)
    at = times_of(curve) - view.origin_ns if is_timed else np.arange(len(curve), dtype=np.int64)
    found = time_columns(at, held, reserved, int(at[0]), int(at[-1]) + 1, COLUMNS)
    peak = view.peak(chosen)
    at_peak = composition(view, peak)
    lines = at_peak.lines["line"].head(MOST_LINES).to_list() if at_peak.is_mostly_unknown else []
    shown = events[found.rows]
    parts = _by_line(view, chosen, lines, shown) if lines else by_category(view, chosen, shown)

    def mark(event: int) -> Mark:
        row = max(0, int(np.searchsorted(events, event, side="right")) - 1)
        return Mark(int(at[row]), int(held[row]), event)

    failed = [mark(event) for event in view.out_of_memory(chosen)["event"].to_list()]
    apart = {(one.at - found.start) // found.step: one for one in failed}
    return OverTime(
        device="the host" if chosen < 0 else f"GPU {chosen}",
        is_by_event=not is_timed,
        start=found.start,
        step=found.step,
        allocated_bytes=_numbers(held[found.rows]),
        reserved_bytes=_numbers(found.reserved_bytes) if _is_known(reserved, held) else None,
        bands=tuple((name, _numbers(held)) for name, held in parts.items()),
        steps=_steps(view, chosen) if is_timed else (),
        peak=mark(peak.event),
        failed=tuple(apart.values()),
        failures=len(failed),
        lines=len(lines),
    )


def _by_line(
    view: MemoryView, device: int, lines: list[str], events: Int64Array
) -> dict[str, Int64Array]:
    """The bytes of some lines after some events of a device, and those of all others together."""
    mine = _of_device(view, device, "line")
    held = {line: HeldBytes.of(mine.filter(line=line)).after(events) for line in lines}
    others = HeldBytes.of(mine.filter(~pl.col("line").is_in(lines).fill_null(False))).after(events)
    return {**held, _OTHER_LINES: others} if others.any() else held


def by_category(view: MemoryView, device: int, events: Int64Array) -> dict[str, Int64Array]:
    """The bytes of each category that ever has any, after some events of a device."""
    mine = _of_device(view, device, "category")
    held = {
        name: HeldBytes.of(mine.filter(pl.col("category") == name)).after(events)
        for name in STACKED
    }
    return {name: part for name, part in held.items() if part.any()}


def _of_device(view: MemoryView, device: int, by: str) -> pl.DataFrame:
    """What `HeldBytes` sums up of a device's allocations, and a column to divide it by."""
    columns = (by, "size_bytes", "start_event", "free_event", "is_given_back_before")
    return view.allocations.lazy().filter(device=device).select(columns).collect()


def _is_known(reserved: Int64Array, held: Int64Array) -> bool:
    return not (reserved == held).all() and not (reserved < held).any()


def has_times(curve: pl.DataFrame) -> bool:
    """Whether all its events have times; the moment before the first one has none."""
    return len(curve) > 1 and curve["time_ns"][1:].null_count() == 0


def times_of(curve: pl.DataFrame) -> Int64Array:
    """The time of each row, in order; the moment before the first event has that of the first."""
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
