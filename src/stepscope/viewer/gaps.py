"""A stretch of a device's idle time: its cause, what ended it, what the host did meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.partition import cause_words
from stepscope.trace.model import Trace
from stepscope.viewer.events import brief
from stepscope.viewer.flame import FlameBy, Forest, flame
from stepscope.viewer.index import TraceIndex

_MOST_DONE = 5
_FAR_LONGER = 4
"""An event that takes so many times as long as the stretch is no explanation of it."""


def gap(
    trace: Trace, index: TraceIndex, forest: Forest, segment: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known of a stretch of idle time.

    Args:
        index: Its slices.
        forest: Its call trees.
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
        "cause": cause_words(segment["cause"]),
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
