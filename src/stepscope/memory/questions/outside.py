"""Memory of the GPU outside torch's allocator: the CUDA context, NCCL, libraries, other processes.

The driver counts what is used of the whole GPU. What torch's allocator had reserved at the time of
a sample is known from the history, and the rest is outside it. A sample can be late by some
milliseconds, in which the allocator may have got or released memory: so the typical value is the
median over the samples within the history.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.replay.arrays import largest
from stepscope.memory.schema import Types
from stepscope.memory.simulator.capacity import capacity_of
from stepscope.memory.view import MemoryView, of_device

OUTSIDE: Types = {
    "time_ns": pl.Int64,
    "used_bytes": pl.Int64,
    "reserved_bytes": pl.Int64,
    "outside_bytes": pl.Int64,  # used_bytes - reserved_bytes
}
"""One row per sample."""


_WHAT = (
    "outside the allocator are the CUDA context, NCCL's buffers, workspaces of libraries, and "
    "other processes on the GPU; the samples do not tell them apart"
)


@dataclass(frozen=True)
class Outside:
    """Memory outside torch's allocator.

    Attributes:
        used_peak_bytes: The most that was used of the GPU in any sample within the history.
        outside_bytes: The median of what was outside the allocator.
        limit_bytes: What is left for the allocator: `total_bytes` less `outside_bytes`.
        peak_reserved_bytes: The most that the allocator had reserved.
        left_bytes: `limit_bytes` less that.
        samples: With the columns of `OUTSIDE`; only samples within the history.
    """

    device: int
    gpu: str
    total_bytes: int | None
    used_peak_bytes: int
    outside_bytes: int
    outside_least_bytes: int
    outside_most_bytes: int
    limit_bytes: int | None
    peak_reserved_bytes: int
    left_bytes: int | None
    samples: pl.DataFrame
    notes: tuple[str, ...]


def outside(view: MemoryView, device: int | None = None) -> Outside:
    """Measures the memory outside torch's allocator."""
    chosen = view.device(device)
    sampled = of_device(view.sampled, chosen)
    if sampled is None:
        raise UsageError(
            f"{view.snapshot.path}: no samples of the memory of GPU {chosen}: record with the "
            "monitor, or name a file of metrics (--metrics FILE; nvidia-smi writes one)"
        )
    table = _joined(view, chosen)
    if table.is_empty():
        raise UsageError(
            f"{sampled.source}: no sample of the GPU's memory lies within the history of "
            f"{view.snapshot.path}"
        )
    size = table["outside_bytes"].to_numpy()
    typical = int(np.median(size))
    total = sampled.total_bytes
    limit = None if total is None else total - typical
    peak = largest(view.curve(chosen)["reserved_bytes"])
    notes = [_WHAT]
    if (size < 0).any():
        notes.append(
            f"in {int((size < 0).sum())} of {len(size)} samples more was reserved than the driver "
            "counted: the sample came late, or is of another GPU"
        )
    return Outside(
        device=chosen,
        gpu=sampled.gpu,
        total_bytes=total,
        used_peak_bytes=largest(table["used_bytes"]),
        outside_bytes=typical,
        outside_least_bytes=int(size.min()),
        outside_most_bytes=int(size.max()),
        limit_bytes=limit,
        peak_reserved_bytes=peak,
        left_bytes=None if limit is None else limit - peak,
        samples=table,
        notes=(*notes, *view.notes(chosen)),
    )


def _joined(view: MemoryView, device: int) -> pl.DataFrame:
    """Each sample within the history, and what was reserved then."""
    sampled = of_device(view.sampled, device)
    if sampled is None:
        return pl.DataFrame(schema=OUTSIDE)
    curve = view.curve(device).drop_nulls("time_ns").select("time_ns", "reserved_bytes")
    curve = curve.sort("time_ns", maintain_order=True).group_by("time_ns").last().sort("time_ns")
    if curve.is_empty():
        return pl.DataFrame(schema=OUTSIDE)
    within = pl.col("time_ns").is_between(curve["time_ns"][0], curve["time_ns"][-1])
    return (
        sampled.samples.filter(within)
        .sort("time_ns")
        .join_asof(curve, on="time_ns", strategy="backward")
        .with_columns(outside_bytes=pl.col("used_bytes") - pl.col("reserved_bytes"))
        .select(pl.col(name).cast(kind) for name, kind in OUTSIDE.items())
    )


def limit_of(
    view: MemoryView, device: int, total_bytes: int | None = None
) -> tuple[int, str] | None:
    """What the allocator of a device can have, and how that is known; None: unknown.

    In this order: what was reserved and free when a request failed; what the GPU has, less what
    samples show outside the allocator; what the GPU has.

    `total_bytes` is what the GPU has, if that is known from elsewhere than samples.
    """
    capacity = capacity_of(view.replay, device)
    if capacity.bytes is not None and capacity.is_exact:
        return capacity.bytes, capacity.source
    sampled = of_device(view.sampled, device)
    total = total_bytes if sampled is None or not sampled.total_bytes else sampled.total_bytes
    if total is None:
        return None
    apart = _joined(view, device)["outside_bytes"]
    if apart.is_empty():
        return total, "what the GPU has; what is outside torch's allocator is not known"
    typical = int(np.median(apart.to_numpy()))
    return total - typical, "what the GPU has, less what samples show outside the allocator"
