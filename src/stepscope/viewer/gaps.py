"""Idle time of devices: all of it as rows of slices, and one stretch with what explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.host.idle_gaps import IDLE_CAUSES
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.partition import cause_label
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace
from stepscope.viewer.colours import Colour
from stepscope.viewer.events import brief
from stepscope.viewer.flame import FlameBy, Forest, flame
from stepscope.viewer.index import Lane, TraceIndex, gpu_title
from stepscope.viewer.slice_rows import SliceRows

_MOST_DONE = 5
_FAR_LONGER = 4
"""An event that takes so many times as long as the stretch is no explanation of it."""


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
    colours = np.array([int(Colour[f"IDLE_{name.upper()}"]) for name in IDLE_CAUSES])
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


def gap(
    trace: Trace, index: TraceIndex, forest: Forest, segment: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known of a stretch of idle time.

    Args:
        segment: A row of `idle_segments`.

    Returns:
        `ended_by`: The first work after the stretch, with `launch`, the call that launched it, and
        `late_ns`: How long the device had been idle when that call began; negative if the call was
        made before. `done`: What the thread that launches it did meanwhile, by own time: names with
        `self_ns`. Moments count from the trace's first event.
    """
    start, end = segment["start_ns"], segment["end_ns"]
    event = segment["event"]
    explains = None if event is None else brief(index, event)
    if explains is not None and explains.get("dur_ns", 0) > _FAR_LONGER * (end - start):
        explains = None
    return {
        "cause": cause_label(segment["cause"]),
        "note": segment["note"],
        "device": segment["device"],
        "start_ns": start - index.origin_ns,
        "dur_ns": end - start,
        "event": explains,
        **_end(trace, index, forest, segment),
    }


def _end(
    trace: Trace, index: TraceIndex, forest: Forest, segment: Mapping[str, Any]
) -> dict[str, Any]:
    start, end = segment["start_ns"], segment["end_ns"]
    work = gpu_work(trace).table
    later = work.filter(pl.col("device") == segment["device"], pl.col("start_ns") >= end)
    if later.is_empty():
        return {"ended_by": None, "launch": None, "late_ns": None, "done": []}
    first = later.row(int(later["start_ns"].arg_min() or 0), named=True)
    launch = first["launch"]
    lane = None if launch is None else int(forest.lane_id[launch])
    return {
        "ended_by": brief(index, first["event"]),
        "launch": None if launch is None else brief(index, launch),
        "late_ns": None if launch is None else int(forest.start_ns[launch]) - start,
        "done": [] if lane is None else _done(trace, forest, start, end, lane),
    }


def _done(trace: Trace, forest: Forest, start: int, end: int, lane: int) -> list[dict[str, Any]]:
    tree = flame(trace, forest, start, end, FlameBy.HOST, (lane,))
    own: Counter[str] = Counter()
    for name, parent, self_ns in zip(
        tree.name, tree.parent.tolist(), tree.self_ns.tolist(), strict=True
    ):
        if parent >= 0:
            own[name] += self_ns
    return [
        {"name": name, "self_ns": self_ns}
        for name, self_ns in own.most_common(_MOST_DONE)
        if self_ns
    ]
