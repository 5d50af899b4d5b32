"""The marks of a trace's events, and what their tracks are called."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.export.slices import Marks, mark
from stepscope.trace.categories import GPU_CATEGORIES
from stepscope.trace.derive.clock_resolution import clock_resolution_ns
from stepscope.trace.derive.nesting import outer_first
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

_BANDS = ("", "annotations", "synchronisation")
"""What has tracks of its own beside a stream's work: annotations hold kernels in time without
calling them, and synchronisation records wait beside them."""


@dataclass(frozen=True, eq=False)
class LaneMarks:
    """The marks of a trace.

    Attributes:
        marks: The marks. `slice` is the event's row.
        lanes: `lanes.lane_id` of each track.
        is_lane: Whether a track is the lane itself, not one beside it.
    """

    marks: Marks
    name_id: npt.NDArray[np.int64]
    titles: tuple[str, ...]
    lanes: tuple[int, ...]
    is_lane: tuple[bool, ...]
    origin_ns: int


def marks_of(trace: Trace) -> LaneMarks:
    """Put the events of a trace on tracks."""
    columns = trace.events.select("name_id", "category", "lane_id", "start_ns", "dur_ns").collect()
    on_host = ~columns["category"].is_in([c.value for c in GPU_CATEGORIES]).to_numpy()
    start = columns["start_ns"].to_numpy()
    band = np.zeros(len(Category), np.int64)
    band[list(Category).index(Category.GPU_USER_ANNOTATION)] = 1
    band[list(Category).index(Category.DEVICE_SYNC)] = 2
    category = columns["category"].to_physical().to_numpy()
    marks = mark(
        columns["lane_id"].to_numpy().astype(np.int64) * len(_BANDS) + band[category],
        start,
        columns["dur_ns"].to_numpy(),
        outer_first()[category],
        clock_resolution_ns(start[on_host]),
    )
    lanes = {row["lane_id"]: row for row in trace.lanes.iter_rows(named=True)}
    lane_id, of_band = np.divmod(marks.lane, len(_BANDS))
    is_lane = (of_band == 0) & (marks.number == 0)
    titles = []
    for lane, beside, number in zip(lane_id, of_band, marks.number, strict=True):
        title = " · ".join(word for word in (title_of(lanes[int(lane)]), _BANDS[beside]) if word)
        titles.append(title + (f" ({number + 1})" if number else ""))
    return LaneMarks(
        marks,
        columns["name_id"].to_numpy().astype(np.int64),
        tuple(titles),
        tuple(lane_id.tolist()),
        tuple(is_lane.tolist()),
        int(start.min()) if len(start) else 0,
    )


def title_of(lane: dict[str, Any]) -> str:
    """What a lane of a trace is called."""
    if lane["is_gpu"]:
        gpu = "" if lane["device"] is None else f"GPU {lane['device']} "
        return f"{gpu}stream {lane['tid']}"
    return str(lane["thread_name"] or f"thread {lane['tid']}")
