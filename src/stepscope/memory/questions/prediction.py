"""The peaks of a history that was changed: what was observed, predicted, and whether it fits."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.memory.allocator.settings import AllocatorSettings
from stepscope.memory.replay.replay import Replay
from stepscope.memory.simulator.requests import Requests
from stepscope.memory.simulator.simulate import simulate
from stepscope.memory.view import START, MemoryView


@dataclass(frozen=True)
class Run:
    """A run at a known size.

    Attributes:
        size: The batch size, the sequence length, the ranks that share the state, or whatever was
            varied.
        view: Its memory.
    """

    size: float
    view: MemoryView


@dataclass(frozen=True)
class Peaks:
    """The peaks of a history.

    Attributes:
        requested_bytes: The most that was asked for and held.
        allocated_bytes: The same in blocks of the allocator.
        reserved_bytes: The most that the allocator reserved.
        fits: Whether it fits into what the device has for the allocator; None: that is not given.
    """

    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    fits: bool | None


def observed_peaks(view: MemoryView, device: int) -> Peaks:
    """The recorded peaks of a device."""
    curve = view.curve(device)
    names = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    requested, allocated, reserved = (int(curve[name].to_numpy().max()) for name in names)
    return Peaks(requested, allocated, reserved, None)


def predicted_peaks(
    replay: Replay, device: int, settings: AllocatorSettings, capacity_bytes: int | None = None
) -> Peaks:
    """The peaks of a changed history, by simulation.

    Args:
        replay: The history.
        device: Its device.
        settings: Of the simulated allocator.
        capacity_bytes: What the device has for the allocator; None: not given.
    """
    requests = Requests(replay, device)
    run = simulate(replay, device, settings, requests=requests)
    fits = None
    if capacity_bytes is not None:
        fits = fits_into(replay, device, settings, capacity_bytes, requests)
    return Peaks(
        peak_requested(replay, device), run.peak_allocated_bytes, run.peak_reserved_bytes, fits
    )


def fits_into(
    replay: Replay,
    device: int,
    settings: AllocatorSettings,
    capacity_bytes: int,
    requests: Requests | None = None,
) -> bool:
    """Whether no request of a history fails if the device has so many bytes for the allocator."""
    run = simulate(
        replay,
        device,
        settings,
        capacity_bytes=capacity_bytes,
        limit_bytes=capacity_bytes,
        requests=requests,
    )
    return run.failed_event is None


def peak_requested(replay: Replay, device: int) -> int:
    """The most that is asked for and held at any time."""
    held = replay.allocations.filter((pl.col("device") == device) & ~pl.col("is_given_back_before"))
    size = pl.col("requested_bytes")
    changes = pl.concat(
        [
            held.select(pl.col("start_event").fill_null(START).alias("event"), change=size),
            held.filter(pl.col("free_event").is_not_null()).select(
                pl.col("free_event").alias("event"), change=-size
            ),
        ]
    )
    sums = changes.group_by("event").agg(pl.col("change").sum()).sort("event")["change"]
    return int(sums.cum_sum().max() or 0)  # type: ignore[arg-type]
