"""What the page draws of one trace, kept in memory: rows of slices, lanes, names, places.

Times are nanoseconds from the trace's first moment on (`origin_ns`), so that they are exact in the
page too, whose numbers hold 53 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.arrays.placing import place
from stepscope.trace.categories import GPU_CATEGORIES, GPU_WORK
from stepscope.trace.derive.clock_resolution import clock_resolution_ns
from stepscope.trace.derive.nesting import outer_first
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category
from stepscope.viewer.colours import Colour, colours_of, with_kernels
from stepscope.viewer.slice_rows import SliceRows

NOT_DRAWN = np.uint32(2**32 - 1)
MOST_EVENTS = 2**32 - 2

_BANDS = 3
_ANNOTATIONS, _WORK, _SYNCHRONISATION = range(_BANDS)
"""What is drawn below each other on a GPU stream; on a thread everything is in one band."""


@dataclass(frozen=True)
class Lane:
    """One thing that is drawn below another: a thread, a stream, the steps, ….

    Attributes:
        key: What links and saved views know it by; stays the same for the same file.
        group: Title of the process or device that it belongs to.
        title: What is written beside it.
        kind: "thread", "stream", "steps", "device_steps", "busy" or "idle".
        rows_of: Which rows it has: "events", "extra" or "idle".
        device: Its GPU; None on the host.
        lane_id: `lanes.lane_id`; None where it is not a lane of the trace.
        is_main: Whether it is the thread that the steps are annotated on.
        outer_rows: How many of its first rows hold nothing but a Python frame around all that
            follows, such as `<module>` and `main`.
    """

    key: str
    group: str
    title: str
    kind: str
    rows_of: str
    first_row: int
    rows: int
    slices: int
    device: int | None = None
    lane_id: int | None = None
    is_main: bool = False
    outer_rows: int = 0


@dataclass(frozen=True, eq=False)
class TraceIndex:
    """The slices of a trace, by row.

    Attributes:
        origin_ns: The trace's first moment, in its own time.
        end_ns: Its last moment, from the origin on.
        extra: Steps, device steps and the time that each device is busy.
        lanes: What is drawn, in order.
        event_count: Number of events of the trace, also of those that are not drawn.
        names: Name of each `name_id`, and of everything in `extra` after them.
        notes: What a reader must know.
    """

    origin_ns: int
    end_ns: int
    events: SliceRows
    extra: SliceRows
    lanes: tuple[Lane, ...]
    event_count: int
    names: pl.Series
    notes: tuple[str, ...]

    @cached_property
    def place(self) -> npt.NDArray[np.uint32]:
        """For each event its position in `events`, or `NOT_DRAWN`."""
        where = np.full(self.event_count, NOT_DRAWN, np.uint32)
        where[self.events.event] = np.arange(len(self.events.event), dtype=np.uint32)
        return where

    @cached_property
    def colours(self) -> list[int]:
        """The colours that are drawn, for the legend."""
        drawn = [np.flatnonzero(np.bincount(one.colour)) for one in (self.events, self.extra)]
        return [int(one) for one in np.union1d(*drawn)]

    def position(self, event: int) -> int | None:
        """Where an event stands in `events`; None: there is no such event, or it is not drawn."""
        if not 0 <= event < len(self.place) or self.place[event] == NOT_DRAWN:
            return None
        return int(self.place[event])

    def row_at(self, position: int) -> int:
        """The row of a position."""
        return int(np.searchsorted(self.events.offsets, position, side="right")) - 1

    def lane_of_row(self, row: int) -> Lane | None:
        """The lane that a row of `events` belongs to."""
        for lane in self.lanes:
            if lane.rows_of == "events" and lane.first_row <= row < lane.first_row + lane.rows:
                return lane
        return None


@dataclass(frozen=True, eq=False)
class Arranged:
    """The slices of a trace in rows, which takes neither links nor the steps of GPUs.

    Attributes:
        origin_ns: As `TraceIndex`.
        end_ns: As `TraceIndex`.
        rows: One slice per event; GPU work in the colour that its name alone suggests.
        busy: When each device is busy, in the trace's own time.
        notes: What a reader must know.
    """

    origin_ns: int
    end_ns: int
    rows: SliceRows
    band: Int64Array
    busy: dict[int, Intervals]
    events: int
    notes: tuple[str, ...]


def arrange(trace: Trace) -> Arranged:
    """Put all slices of a trace into rows."""
    columns = trace.events.select(
        "name_id", "category", "lane_id", "start_ns", "dur_ns", "device"
    ).collect()
    if len(columns) > MOST_EVENTS:
        raise ValueError(f"{trace.path}: more than {MOST_EVENTS:,} events")
    start = columns["start_ns"].to_numpy()
    dur = columns["dur_ns"].to_numpy()
    origin = int(start.min()) if len(start) else 0
    end = int((start + dur).max()) - origin if len(start) else 0
    category = columns["category"]
    band = _bands(category, columns["lane_id"].to_numpy(), trace)
    rank = outer_first()
    on_host = ~category.is_in([c.value for c in GPU_CATEGORIES]).to_numpy()
    placed = place(
        band,
        start,
        dur,
        rank=rank[category.to_physical().to_numpy()],
        tolerance_ns=clock_resolution_ns(start[on_host]),
    )
    name = columns["name_id"].to_numpy()
    kind = trace.name_rows["kind"].gather(name)
    rows = SliceRows.placed(
        replace(placed, end_ns=placed.end_ns - origin),
        start - origin,
        np.arange(len(start), dtype=np.uint32),
        name,
        with_kernels(colours_of(category, kind), name, trace.name_rows["group"]),
    )
    notes = []
    if placed.left_out:
        notes.append(f"{placed.left_out:,} events overlap too many others and are not drawn")
    return Arranged(origin, end, rows, placed.band, _busy(columns), len(start), tuple(notes))


def _busy(columns: pl.DataFrame) -> dict[int, Intervals]:
    work = columns.filter(
        pl.col("category").is_in([c.value for c in GPU_WORK]), pl.col("device").is_not_null()
    ).select("device", "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    return {
        device: intervals.merge(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
        for (device,), mine in sorted(work.group_by(["device"]), key=lambda one: one[0])
    }


def early_index(trace: Trace, arranged: Arranged) -> TraceIndex:
    """What can be drawn before anything is derived: without the steps of GPUs.

    A kernel whose metadata say more than its name may still get another colour.
    """
    return _indexed(trace, arranged, arranged.rows, None)


def whole_index(trace: Trace, arranged: Arranged) -> TraceIndex:
    """The index of a trace."""
    category = trace.events.select("category").collect()["category"]
    kind = trace.derived.select("kind").collect()["kind"]
    rows = arranged.rows
    colour = colours_of(category, kind)[rows.event]
    colour = with_kernels(colour, rows.name, trace.name_rows["group"])
    return _indexed(trace, arranged, replace(rows, colour=colour), trace.device_steps)


def _indexed(
    trace: Trace, arranged: Arranged, rows: SliceRows, device_steps: pl.DataFrame | None
) -> TraceIndex:
    extra, above, names = _extra(trace, arranged, device_steps)
    lanes = _sorted_lanes([*above, *_trace_lanes(trace, arranged.band, rows)])
    return TraceIndex(
        arranged.origin_ns,
        arranged.end_ns,
        rows,
        extra,
        lanes,
        arranged.events,
        names,
        arranged.notes,
    )


def _bands(category: pl.Series, lane_id: npt.NDArray[np.uint32], trace: Trace) -> Int64Array:
    """Lane and band of each event as one number."""
    of_category = np.full(len(Category), _WORK, np.int64)
    of_category[list(Category).index(Category.GPU_USER_ANNOTATION)] = _ANNOTATIONS
    of_category[list(Category).index(Category.DEVICE_SYNC)] = _SYNCHRONISATION
    is_gpu = np.zeros(int(lane_id.max(initial=0)) + 1, np.bool_)
    gpu_lanes = trace.lanes.filter("is_gpu")["lane_id"].to_numpy()
    is_gpu[gpu_lanes[gpu_lanes < len(is_gpu)]] = True
    within = np.where(
        is_gpu[lane_id], of_category[category.to_physical().to_numpy()], np.int64(_WORK)
    )
    return lane_id.astype(np.int64) * _BANDS + within


def _trace_lanes(trace: Trace, band: Int64Array, rows: SliceRows) -> list[Lane]:
    """The lanes of the file that have slices; their rows follow one another."""
    of_row = band // _BANDS
    main = set(trace.steps["lane_id"].unique().to_list())
    described = dict(trace.devices.select("device", "name").iter_rows())
    found = []
    for lane in trace.lanes.iter_rows(named=True):
        mine = np.flatnonzero(of_row == lane["lane_id"])
        if not len(mine):
            continue
        first, number = int(mine[0]), len(mine)
        found.append(
            Lane(
                key=f"{lane['pid']}/{lane['tid']}",
                group=_group(lane, described),
                title=_title(lane),
                kind="stream" if lane["is_gpu"] else "thread",
                rows_of="events",
                first_row=first,
                rows=number,
                slices=int(rows.offsets[first + number] - rows.offsets[first]),
                device=lane["device"] if lane["is_gpu"] else None,
                lane_id=lane["lane_id"],
                is_main=lane["lane_id"] in main,
                outer_rows=_outer_rows(rows, first, number),
            )
        )
    return found


_OUTER_SHARE = 0.9
"""Of a lane's time, what a frame around everything covers at least."""
_FEWEST_OUTER = 3


def _outer_rows(rows: SliceRows, first: int, number: int) -> int:
    """Rows from the first on with one Python frame each around nearly all; not the last row."""
    found, span = 0, 0
    while found < number - 1:
        low, high = rows.offsets[first + found], rows.offsets[first + found + 1]
        if high - low != 1 or rows.colour[low] != Colour.PYTHON:
            break
        lasting = int(rows.end_ns[low] - rows.start_ns[low])
        span = span or lasting
        if lasting < _OUTER_SHARE * span:
            break
        found += 1
    return found if found >= _FEWEST_OUTER else 0


def _group(lane: dict[str, Any], described: dict[int, str | None]) -> str:
    if lane["is_gpu"] and lane["device"] is not None:
        return gpu_title(lane["device"], described)
    name = lane["process_name"]
    return f"Process {lane['pid']}" + (f" · {name}" if name else "")


def gpu_title(device: int, described: dict[int, str | None]) -> str:
    """What a GPU is called: its number, and its kind where the file says it."""
    kind = described.get(device)
    return f"GPU {device}" + (f" · {kind}" if kind else "")


def _title(lane: dict[str, Any]) -> str:
    if lane["is_gpu"]:
        # Synchronisation records that belong to no stream have the greatest number there is.
        # Old recorders wrote "stream 7" where newer ones write 7.
        number = str(lane["tid"]).removeprefix("stream ")
        return f"stream {number}".replace(f"stream {2**32 - 1} ", "device-wide ")
    name = lane["thread_name"]
    if not name:
        return f"thread {lane['tid']}"
    return f"{name}, overhead" if str(lane["tid"]).endswith(" overhead") else str(name)


_FIRST_KINDS = {"steps": 0, "device_steps": 1, "busy": 2, "idle": 3, "stream": 4, "thread": 5}


def _sorted_lanes(lanes: list[Lane]) -> tuple[Lane, ...]:
    """Steps, then each GPU, then the processes, the one with the main thread first."""
    main = {lane.group for lane in lanes if lane.is_main}
    size: dict[str, int] = {}
    for lane in lanes:
        size[lane.group] = size.get(lane.group, 0) + lane.slices

    def key(lane: Lane) -> tuple[Any, ...]:
        on_gpu = lane.device is not None
        return (
            lane.kind != "steps",
            not on_gpu,
            lane.device if on_gpu else 0,
            lane.group not in main,
            0 if on_gpu else -size[lane.group],
            lane.group,
            _FIRST_KINDS[lane.kind],
            not lane.is_main,
            -lane.slices,
            lane.key,
        )

    return tuple(sorted(lanes, key=key))


def _extra(
    trace: Trace, arranged: Arranged, device_steps: pl.DataFrame | None
) -> tuple[SliceRows, list[Lane], pl.Series]:
    """Steps, device steps where they are known, and when each device is busy; and all names."""
    parts: list[tuple[Int64Array, Int64Array, npt.NDArray[np.integer[Any]], list[str], Colour]] = []
    lanes: list[Lane] = []
    described = dict(trace.devices.select("device", "name").iter_rows())
    origin = arranged.origin_ns
    names = trace.name_rows["name"]

    def add(
        group: str, title: str, kind: str, device: int | None,
        start: Int64Array, end: Int64Array, labels: list[str], colour: Colour,
    ) -> None:  # fmt: skip
        if len(start):
            key = kind if device is None else f"{kind}/{device}"
            lanes.append(Lane(key, group, title, kind, "extra", len(parts), 1, len(start), device))
            parts.append((start - origin, end - origin, np.arange(len(start)), labels, colour))

    steps = trace.steps.with_row_index("number").sort("start_ns")
    add(
        "Steps", "steps on the host", "steps", None,
        *_in_order(steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()),
        [f"step {number}" for number in steps["step"]], Colour.STEP,
    )  # fmt: skip
    for device, busy in arranged.busy.items():
        group = gpu_title(device, described)
        if device_steps is not None:
            mine = device_steps.filter(pl.col("device") == device).sort("start_ns")
            add(
                group, "steps on the GPU", "device_steps", device,
                *_in_order(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()),
                [f"step {number}" for number in mine["step"]], Colour.STEP,
            )  # fmt: skip
        add(
            group, "busy", "busy", device, busy.starts, busy.ends,
            ["busy"], Colour.COMPUTE,
        )  # fmt: skip
    known = sorted({label for _, _, _, labels, _ in parts for label in labels})
    number_of = {label: len(names) + at for at, label in enumerate(known)}
    rows = SliceRows.of(
        np.cumsum([0, *(len(part[0]) for part in parts)]),
        _joined([part[0] for part in parts]),
        _joined([part[1] for part in parts]),
        _joined([part[2] for part in parts]),
        _joined(
            [
                np.resize(np.array([number_of[label] for label in labels]), len(start))
                for start, _, _, labels, _ in parts
            ]
        ),
        _joined([np.full(len(part[0]), int(part[4])) for part in parts]),
    )
    return rows, lanes, pl.concat([names, pl.Series("name", known, dtype=pl.String)])


def _joined(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _in_order(start: Int64Array, end: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Spans that begin in order, each cut where the next one begins."""
    if not len(start):
        return start, end
    return start, np.maximum(start, np.minimum(end, np.append(start[1:], end.max())))
