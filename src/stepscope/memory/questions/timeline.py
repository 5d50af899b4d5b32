"""Memory over time: allocated, reserved, and what the allocated bytes are for.

A history can have millions of events, and a chart a few hundred points. The time is divided into
equal buckets, and each in which something happened is shown at the moment when the most was
allocated in it, so that no peak is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.memory.program.ranges import innermost
from stepscope.memory.questions.over_time import by_category, has_times, times_of
from stepscope.memory.view import MemoryView
from stepscope.trace.arrays.time_columns import time_columns

BUCKETS = 200


@dataclass(frozen=True)
class Timeline:
    """Memory over time.

    Attributes:
        is_by_event: Whether the buckets divide the events, not the time, for want of times.
        timeline: One row per bucket with an event, at the moment when the most was allocated in
            it: time_ns, event, step, phase, allocated_bytes, reserved_bytes (the most within the
            bucket), and one column for each category, such as parameter_bytes, which sum to
            allocated_bytes.
        steps: One row per step of the program: step, start_ns, end_ns, peak_allocated_bytes,
            peak_reserved_bytes, end_allocated_bytes, allocations.
    """

    device: int
    start_ns: int | None
    is_by_event: bool = field(metadata={"label": "divided by events, for want of times"})
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    timeline: pl.DataFrame
    steps: pl.DataFrame
    notes: tuple[str, ...]


def timeline(view: MemoryView, device: int | None = None, buckets: int = BUCKETS) -> Timeline:
    """Shows memory over time."""
    chosen = view.device(device)
    curve = view.curve(chosen)
    is_by_event = not has_times(curve)
    at = np.arange(len(curve)) if is_by_event else times_of(curve)
    held, reserved = curve["allocated_bytes"].to_numpy(), curve["reserved_bytes"].to_numpy()
    found = time_columns(at, held, reserved, int(at[0]), int(at[-1]) + 1, buckets)
    shown = (
        curve[found.rows[found.with_events]]
        .select("time_ns", "event", "allocated_bytes")
        .with_columns(reserved_bytes=pl.Series(found.reserved_bytes[found.with_events]))
    )
    devices = pl.Series([chosen], dtype=pl.Int32).new_from_index(0, len(shown))
    ranges = view.categories.ranges
    steps = ranges.steps.with_columns(depth=pl.lit(0, dtype=pl.Int32))
    phases = ranges.table.filter(pl.col("phase").is_not_null())
    shown = shown.with_columns(
        step=steps["step"].gather(innermost(steps, devices, shown["time_ns"])),
        phase=phases["phase"].gather(innermost(phases, devices, shown["time_ns"])),
        **{
            f"{name}_bytes": pl.Series(part)
            for name, part in by_category(view, chosen, shown["event"].to_numpy()).items()
        },
    )
    first = ["time_ns", "event", "step", "phase", "allocated_bytes", "reserved_bytes"]
    times = curve["time_ns"].drop_nulls()
    return Timeline(
        device=chosen,
        start_ns=int(times[0]) if len(times) else None,
        is_by_event=is_by_event,
        peak_allocated_bytes=int(held.max()),
        peak_reserved_bytes=int(reserved.max()),
        timeline=shown.select(*first, pl.exclude(first)),
        steps=_steps(view, chosen, curve),
        notes=view.notes(chosen),
    )


def _steps(view: MemoryView, device: int, curve: pl.DataFrame) -> pl.DataFrame:
    steps = view.categories.ranges.steps.filter(pl.col("device") == device).drop("device")
    # Of what is timed, with the moment before the first event.
    is_timed = curve["time_ns"].fill_null(strategy="backward").is_not_null()
    timed = curve if is_timed.all() else curve.filter(is_timed)
    times = times_of(timed)
    of_steps = view.allocations.lazy().filter(pl.col("step").is_not_null(), device=device)
    made = dict(of_steps.group_by("step").len().collect().iter_rows())
    rows = []
    for step, start, end in steps.iter_rows():
        until = int(times[-1]) + 1 if end is None and len(times) else end or start
        first, last = np.searchsorted(times, [start, until], side="left")
        # What was held as the step began counts as well.
        part = timed[max(0, int(first) - 1) : int(last)]
        if part.is_empty():
            continue
        rows.append(
            (
                step, start, end, part["allocated_bytes"].max(), part["reserved_bytes"].max(),
                part["allocated_bytes"][-1], made.get(step, 0),
            )
        )  # fmt: skip
    schema = {
        "step": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64,
        "peak_allocated_bytes": pl.Int64, "peak_reserved_bytes": pl.Int64,
        "end_allocated_bytes": pl.Int64, "allocations": pl.Int64,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=schema, orient="row")
