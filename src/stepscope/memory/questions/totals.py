"""The numbers that describe a snapshot, for each device."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.memory.allocator.settings import settings_of
from stepscope.memory.questions.composition import by_category, by_line
from stepscope.memory.questions.growth import describe_leak
from stepscope.memory.questions.oom import describe_failure
from stepscope.memory.schema import Types
from stepscope.memory.view import MemoryView, held_at

DEVICES: Types = {
    "device": pl.Int32,
    "allocations": pl.Int64,
    "events": pl.Int64,
    "peak_allocated_bytes": pl.Int64,
    "peak_requested_bytes": pl.Int64,
    "peak_reserved_bytes": pl.Int64,
    "allocated_bytes": pl.Int64,
    "reserved_bytes": pl.Int64,
    "segments": pl.Int64,
    "out_of_memory": pl.Int64,
}


@dataclass(frozen=True)
class Totals:
    """A snapshot in numbers. The numbers are about one device; `devices` has all of them.

    Attributes:
        failure: Why the last request that failed did; None: none failed. Of another device than the
            one that the numbers are about if requests failed only there, and none was asked for.
        leak: Which line leaves memory behind in each step; None: none does.
        allocations: Blocks that were active at any time of the recording.
        events: Events of the recorded history.
        span_ns: From the first event to the last; None where the file has no times.
        peak_allocated_bytes: The most that the program held at any time, in rounded sizes.
        peak_requested_bytes: The most that it had asked for and held.
        peak_reserved_bytes: The most that the allocator had reserved of the device.
        allocated_bytes: What the program held when the snapshot was taken, in rounded sizes.
        reserved_bytes: What the allocator had reserved then.
        replay_mismatches: How often the history contradicts itself or the state at the end; 0: it
            leads exactly to what the snapshot found. On all devices.
        settings: What PYTORCH_CUDA_ALLOC_CONF was, as far as the file says.
        devices: Each device: the columns of `DEVICES`, defined as above.
        categories: What was held at the peak by category, as in `composition.Composition`.
        mismatches: contradiction, count, device, event, address, message.
    """

    failure: str | None
    leak: str | None
    device: int
    allocations: int
    events: int
    span_ns: int | None
    peak_allocated_bytes: int
    peak_requested_bytes: int
    peak_reserved_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    out_of_memory: int
    replay_mismatches: int
    settings: str
    devices: pl.DataFrame
    categories: pl.DataFrame
    lines: pl.DataFrame
    mismatches: pl.DataFrame
    notes: tuple[str, ...]

    @property
    def has_history(self) -> bool:
        """As of `MemoryView.has_history`."""
        return self.events > 0


def totals(view: MemoryView, device: int | None = None) -> Totals:
    """Describes a snapshot in numbers."""
    chosen = view.device(device)
    rows = [_device(view, number) for number in view.devices or (chosen,)]
    devices = pl.DataFrame(rows, schema=DEVICES, orient="row")
    mine = devices.filter(pl.col("device") == chosen).row(0, named=True)
    times = view.curve(chosen)["time_ns"].drop_nulls()
    held = held_at(view.allocations, chosen, view.peak(chosen).event).rename(
        {"size_bytes": "allocated_bytes"}
    )
    return Totals(
        failure=_failure(view, chosen, is_asked=device is not None),
        leak=describe_leak(view, device),
        **{name: mine[name] for name in DEVICES if name != "segments"},
        span_ns=int(times[-1]) - int(times[0]) if len(times) else None,
        replay_mismatches=view.replay.mismatches,
        settings=str(settings_of(view.snapshot.settings)),
        devices=devices,
        categories=by_category(held),
        lines=by_line(held),
        mismatches=view.replay.contradictions,
        notes=view.notes(chosen),
    )


def _failure(view: MemoryView, device: int, *, is_asked: bool) -> str | None:
    failure = describe_failure(view, device)
    if failure is None and not is_asked:
        for number in sorted(view.devices, key=view.peak_bytes, reverse=True):
            if (failure := describe_failure(view, number)) is not None:
                return f"device {number}: {failure}"
    return failure


def _device(view: MemoryView, device: int) -> tuple[int, ...]:
    curve = view.curve(device)
    peaks = curve.select(pl.col("allocated_bytes", "requested_bytes", "reserved_bytes").max()).row(
        0
    )
    of_device = pl.col("device") == device
    return (
        device,
        len(view.replay.allocations.filter(of_device)),
        len(curve) - 1,
        *peaks,
        curve["allocated_bytes"][-1],
        curve["reserved_bytes"][-1],
        len(view.snapshot.segments.filter(of_device)),
        len(view.out_of_memory(device)),
    )
