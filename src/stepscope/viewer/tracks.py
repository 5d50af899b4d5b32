"""The idle time of a trace as rows of slices, which is worked out after the first picture."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.host.idle_gaps import IDLE_CAUSES
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace
from stepscope.viewer.colours import idle_colour
from stepscope.viewer.index import Lane, TraceIndex, gpu_title
from stepscope.viewer.slice_rows import SliceRows


def idle_rows(
    trace: Trace, index: TraceIndex, segments: pl.DataFrame
) -> tuple[SliceRows, tuple[Lane, ...]]:
    """The idle segments, one row per device; their names are `IDLE_CAUSES`, after the index's."""
    described = dict(trace.devices.select("device", "name").iter_rows())
    lanes: list[Lane] = []
    offsets = [0]
    for (device,), mine in segments.group_by(["device"], maintain_order=True):
        lanes.append(
            Lane(
                f"idle/{device}",
                gpu_title(device, described),
                "why idle",
                "idle", "idle", len(lanes), 1, len(mine), device,
            )
        )  # fmt: skip
        offsets.append(offsets[-1] + len(mine))
    cause = segments["cause"].to_physical().to_numpy().astype(np.int64)
    colours = np.array([int(idle_colour(name)) for name in IDLE_CAUSES])
    rows = SliceRows.of(
        np.array(offsets, np.int64),
        _relative(segments["start_ns"], index.origin_ns),
        _relative(segments["end_ns"], index.origin_ns),
        np.arange(len(segments)),
        cause + len(index.names),
        colours[cause],
    )
    return rows, tuple(lanes)


def _relative(times: pl.Series, origin: int) -> Int64Array:
    moved: Int64Array = times.to_numpy() - origin
    return moved
