"""How often memory is requested and given back, and how often that reaches the device.

A request that a cached block serves costs microseconds. One that does not reaches the device
(cudaMalloc), and where the device has no room, everything cached is given back first, which waits
for the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.memory.schema import Action
from stepscope.memory.simulator.operations import ReleaseCause, releases_of
from stepscope.memory.view import MemoryView

_ASKS = (Action.SEGMENT_ALLOC.value, Action.SEGMENT_MAP.value)
_GIVES = (Action.SEGMENT_FREE.value, Action.SEGMENT_UNMAP.value)


@dataclass(frozen=True)
class Churn:
    """How often memory was requested and given back, within the recording.

    Attributes:
        device_requests: How often the allocator asked the device for memory.
        retries: How often the device had no room, so that everything cached was given back first.
        emptied: How often the program emptied the cache (`torch.cuda.empty_cache`).
        lines: line, requests, requested_bytes, median_life_ns (from the request to when the
            program gives it back; null where nothing was given back), device_requests (that one of
            its requests caused), category. Most requests first.
    """

    device: int
    requests: int
    requested_bytes: int
    device_requests: int
    device_requested_bytes: int
    device_releases: int
    device_released_bytes: int
    retries: int
    emptied: int
    lines: pl.DataFrame
    steps: pl.DataFrame
    notes: tuple[str, ...]


def churn(view: MemoryView, device: int | None = None) -> Churn:
    """Counts requests, and what of them reaches the device."""
    chosen = view.device(device)
    made = view.allocations.filter(
        (pl.col("device") == chosen) & pl.col("start_event").is_not_null()
    )
    events = (
        view.snapshot.events.filter(pl.col("device") == chosen)
        .select("event", pl.col("action").cast(pl.String), "size_bytes", "stack")
        .collect()
    )
    asked = events.filter(pl.col("action").is_in(_ASKS))
    given = events.filter(pl.col("action").is_in(_GIVES))
    causes = [release.cause for release in releases_of(view.replay, chosen)]
    return Churn(
        device=chosen,
        requests=len(made),
        requested_bytes=int(made["requested_bytes"].sum()),
        device_requests=len(asked),
        device_requested_bytes=int(asked["size_bytes"].sum()),
        device_releases=len(given),
        device_released_bytes=int(given["size_bytes"].sum()),
        retries=causes.count(ReleaseCause.RETRY),
        emptied=causes.count(ReleaseCause.PROGRAM),
        lines=_lines(made, asked),
        steps=made.group_by("step")
        .agg(pl.len().cast(pl.Int64).alias("requests"), pl.col("requested_bytes").sum())
        .sort("step", nulls_last=True),
        notes=view.notes(chosen),
    )


def _lines(made: pl.DataFrame, asked: pl.DataFrame) -> pl.DataFrame:
    # The allocator asks the device while it serves a request: that is the next one.
    causing = (
        asked.select("event")
        .sort("event")
        .join_asof(
            made.select("start_event", "allocation").sort("start_event"),
            left_on="event",
            right_on="start_event",
            strategy="forward",
        )
    )
    counts = causing.group_by("allocation").agg(pl.len().cast(pl.Int64).alias("device_requests"))
    return (
        made.join(counts, on="allocation", how="left", maintain_order="left")
        .group_by("line")
        .agg(
            pl.len().cast(pl.Int64).alias("requests"),
            pl.col("requested_bytes").sum(),
            (pl.col("free_ns") - pl.col("start_ns"))
            .median()
            .cast(pl.Int64)
            .alias("median_life_ns"),
            pl.col("device_requests").fill_null(0).sum(),
            pl.col("category").mode().sort().first(),
        )
        .sort("requests", "requested_bytes", "line", descending=[True, True, False])
    )
