"""Why the GPU was idle: every gap of every device, divided by cause.

Definitions
    A gap is a stretch of a device's time in which none of its streams runs anything. Before the
    first work of the first step it begins with that step. The work that begins at its end ended
    it; of several the one that was launched first.
    The call that launched this work tells whose fault the gap is:

    device_wait      The call had returned before the gap began: the work was in the queue, and
                     waited for another stream or an event, or for the device to take it up. And
                     what lies between the end of the call and the end of the gap: launch latency.
    Otherwise the host was late: the gap up to the end of the launching call is divided by what
    the launching thread did in it (see `host_activity`):
    input            Waiting for the next batch.
    synchronisation  A call that waits for the device, and the refilling after it: dispatching
                     that follows it in the same gap, and Python of up to 0.2 ms at a stretch.
    allocation       cudaMalloc, cudaFree and their kin.
    pageable_copy    Copying to the device from pageable memory, with its refilling.
    annotated_phase  Saving a checkpoint, evaluating, or another annotation without launches.
    op_dispatch      Operators and calls: the host launches more slowly than the device works.
    python           Nothing that was recorded: Python between operators, and its garbage
                     collector.
    unknown          The call was not recorded.

The causes add up to the idle time of the timeline of the same scope, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.gpu_work import GpuWork, gpu_work
from stepscope.analysis.host_activity import BLOCKING, HostActivity, State, host_activity
from stepscope.analysis.remember import remembered
from stepscope.analysis.scope import AnsweredScope, Scope
from stepscope.trace import intervals

if TYPE_CHECKING:
    from stepscope.trace.intervals import Int64Array
    from stepscope.trace.model import Trace

CAUSES = (
    "device_wait",
    "input",
    "synchronisation",
    "allocation",
    "pageable_copy",
    "annotated_phase",
    "op_dispatch",
    "python",
    "unknown",
)
REFILLING_PYTHON_NS = 200_000
LONGEST = 10
MOST_DETAILS = 50

_DEVICE_WAIT, _UNKNOWN = CAUSES.index("device_wait"), CAUSES.index("unknown")
_CAUSE_OF_STATE = {
    State.PHASE: "annotated_phase",
    State.INPUT: "input",
    State.SYNCHRONISATION: "synchronisation",
    State.ALLOCATION: "allocation",
    State.PAGEABLE_COPY: "pageable_copy",
    State.GARBAGE_COLLECTOR: "python",
    State.DISPATCH: "op_dispatch",
    State.ANNOTATION: "annotated_phase",
    State.PYTHON: "python",
}
_CAUSE_CODES = np.array([CAUSES.index(_CAUSE_OF_STATE[State(s)]) for s in range(len(State))])
_NOTES = (
    "queued work waits",
    "launch latency",
    "refilling",
    "garbage collector",
    "launch not recorded",
    "nothing followed",
)
_WAITING, _LATENCY, _REFILLING, _COLLECTING, _NOT_RECORDED, _NOTHING = range(len(_NOTES))
_NONE = -1

SEGMENTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "gap": pl.Int64,  # row of the gap
    "device": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cause": pl.Enum(CAUSES),
    "event": pl.Int64,  # the host event that explains it; null: none was recorded
    "note": pl.Enum(_NOTES),  # what kind of waiting, where the event does not say it
}
"""Gaps, cut where their cause changes."""

GAPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "gap": pl.Int64,
    "device": pl.Int32,
    "step": pl.Int32,  # of the work that ended it
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "ended_by": pl.Int64,  # event that ended it; null: nothing did
    "launch": pl.Int64,  # the call that launched it; null: not recorded
}
"""One row per gap."""


@dataclass(frozen=True)
class IdleCauses:
    """The idle time of a scope by cause.

    Attributes:
        idle_ns: Idle time of the scope; the causes add up to it.
        total_ns: Length of the scope's windows.
        causes: One row per cause: cause, idle_ns, idle_share (of the idle time), total_share (of
            all time), gaps (in which it has a part), longest_ns.
        details: Causes by what explains them: cause, activity, idle_ns, and the number of
            stretches of it; the largest 50.
        steps: One row per device and step: idle_ns and one column per cause.
        longest: The ten longest gaps: device, step, start_ns, dur_ns, cause (the largest), its
            cause_ns, activity, the number of the event that explains it, the event that ended the
            gap with its name, its launch and operator, and the Python frame of the host's thread
            where frames were recorded.
        gaps: Every gap, with the columns of `GAPS`.
        segments: Every gap cut by cause, with the columns of `SEGMENTS`, clipped to the scope.
        scope: What the answer covers.
        notes: What a reader must know.
    """

    idle_ns: int
    total_ns: int
    causes: pl.DataFrame
    details: pl.DataFrame
    steps: pl.DataFrame
    longest: pl.DataFrame
    gaps: pl.DataFrame = field(metadata={"show": False})
    segments: pl.DataFrame = field(metadata={"show": False})
    scope: AnsweredScope
    notes: tuple[str, ...]

    def of(self, cause: str) -> int:
        """Idle time of one cause, in ns."""
        return int(self.causes.filter(pl.col("cause") == cause)["idle_ns"].sum())


@remembered
def idle_causes(trace: Trace, scope: Scope | None = None) -> IdleCauses:
    """Divide the idle time of the devices by its causes.

    Raises:
        UsageError: The scope names steps or devices that the trace does not have.
    """
    work = gpu_work(trace, scope)
    gaps = _find_gaps(work)
    activity = host_activity(trace, work.table)
    segments = _cut(trace, gaps, activity)
    inside = _inside(segments, _clip(segments, work.windows))
    idle_ns = int((inside["end_ns"] - inside["start_ns"]).sum())
    total_ns = int((work.windows["end_ns"] - work.windows["start_ns"]).sum())
    return IdleCauses(
        idle_ns=idle_ns,
        total_ns=total_ns,
        causes=_causes(inside, idle_ns, total_ns),
        details=_details(trace, inside),
        steps=_steps(segments, _clip(segments, work.device_steps), work.device_steps),
        longest=_longest(trace, gaps, inside),
        gaps=gaps,
        segments=inside,
        scope=work.answered,
        notes=work.notes,
    )


def _find_gaps(work: GpuWork) -> pl.DataFrame:
    """All gaps of the devices, from their first window's start to their last one's end."""
    spans = pl.concat([work.windows, work.device_steps])
    parts = []
    for (device,), rows in work.table.filter(pl.col("dur_ns") > 0).group_by(
        ["device"], maintain_order=True
    ):
        mine = spans.filter(pl.col("device") == device)
        starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        first = min(int(starts.min()), *mine["start_ns"].to_list())
        last = max(int(ends.max()), *mine["end_ns"].to_list())
        holes = intervals.complement(intervals.merge(starts, ends), first, last)
        ended_by = _ending_rows(rows, starts, holes.ends)
        is_known = pl.Series(ended_by >= 0)
        ending = rows.select("step", "launch", ended_by="event")[np.maximum(ended_by, 0)]
        parts.append(
            ending.with_columns(pl.when(is_known).then(pl.all())).with_columns(
                device=pl.lit(device),
                start_ns=pl.Series(holes.starts),
                end_ns=pl.Series(holes.ends),
            )
        )
    if not parts:
        return pl.DataFrame(schema=GAPS)
    return (
        pl.concat(parts)
        .with_row_index("gap")
        .select(pl.col(name).cast(dtype) for name, dtype in GAPS.items())
    )


def _ending_rows(rows: pl.DataFrame, starts: Int64Array, ends: Int64Array) -> Int64Array:
    """For each end of a gap the row that began then, the first launched of several; -1: none."""
    low = np.searchsorted(starts, ends, side="left")
    high = np.searchsorted(starts, ends, side="right")
    found = np.where(high > low, low, -1)
    several = np.nonzero(high - low > 1)[0]
    if len(several):
        # Calls are numbered in the order of the file, which only breaks ties here.
        launch = rows["launch"].fill_null(np.iinfo(np.int64).max).to_numpy()
        for gap in several:
            found[gap] = low[gap] + int(np.argmin(launch[low[gap] : high[gap]]))
    return found


def _cut(trace: Trace, gaps: pl.DataFrame, activity: HostActivity) -> pl.DataFrame:
    """Cut the gaps where their cause changes."""
    start, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    launch = gaps["launch"].fill_null(-1).to_numpy()
    ended_by = gaps["ended_by"].fill_null(-1).to_numpy()
    calls = trace.events.select("lane_id", "start_ns", "dur_ns").collect()[np.maximum(launch, 0)]
    returned = (calls["start_ns"] + calls["dur_ns"]).to_numpy()
    lane = calls["lane_id"].to_numpy()
    known = launch >= 0
    turn = np.clip(returned, start, end)

    unknown = np.nonzero(~known)[0]
    waits = np.nonzero(known & (turn < end))[0]
    pieces = [
        _Pieces(
            unknown,
            start[unknown],
            end[unknown],
            np.full(len(unknown), _UNKNOWN),
            np.full(len(unknown), -1),
            np.where(ended_by[unknown] < 0, _NOTHING, _NOT_RECORDED),
        ),
        _Pieces(
            waits,
            turn[waits],
            end[waits],
            np.full(len(waits), _DEVICE_WAIT),
            ended_by[waits],
            np.where(returned[waits] <= start[waits], _WAITING, _LATENCY),
        ),
    ]
    is_late = known & (turn > start)
    for one in np.unique(lane[is_late]):
        late = np.nonzero(is_late & (lane == one))[0]
        pieces.append(_divide(activity, int(one), late, start[late], turn[late]))
    gap, first, last, cause, event, note = (
        np.concatenate(column).astype(np.int64) for column in zip(*pieces, strict=True)
    )
    # Gaps are numbered by device and time, so that within a device time alone is the order.
    device = gaps["device"].to_numpy()[gap]
    alone = len(device) == 0 or bool((device == device[0]).all())
    order = np.argsort(first, kind="stable") if alone else np.lexsort((first, device))
    gap = gap[order]
    return pl.DataFrame(
        {
            "gap": gap,
            "device": gaps["device"].gather(gap),
            "start_ns": first[order],
            "end_ns": last[order],
            "cause": _words(CAUSES, cause[order]),
            "event": _or_null(event[order]),
            "note": _words(_NOTES, note[order]),
        },
        schema=SEGMENTS,
    )


class _Pieces(NamedTuple):
    """Segments of gaps, column by column; -1 stands for none."""

    gap: Int64Array
    start: Int64Array
    end: Int64Array
    cause: Int64Array
    event: Int64Array
    note: Int64Array


def _words(words: tuple[str, ...], codes: Int64Array) -> pl.Series:
    """Codes as an enumeration; negative ones are null."""
    known = pl.Series(words, dtype=pl.Enum(words)).gather(np.maximum(codes, 0))
    return pl.select(pl.when(pl.Series(codes >= 0)).then(known)).to_series()


def _or_null(values: Int64Array) -> pl.Series:
    column = pl.Series(values)
    return pl.select(pl.when(column >= 0).then(column)).to_series()


def _divide(
    activity: HostActivity, lane: int, gaps: Int64Array, first: Int64Array, last: Int64Array
) -> _Pieces:
    """Divide the host's part of gaps by what their launching thread did."""
    did = activity.by_lane[lane]
    stretches = intervals.Intervals(did.starts, did.ends)
    window, starts, ends = intervals.clip_by_windows(stretches, first, last)
    index = np.searchsorted(did.starts, starts, side="right") - 1
    state, by_lane = did.states[index], did.lanes[index]
    event = activity.event_at(by_lane, state, starts)
    rest = intervals.complement(
        intervals.merge(did.starts, did.ends), int(first.min()), int(last.max())
    )
    free_window, free_starts, free_ends = intervals.clip_by_windows(rest, first, last)
    window = np.concatenate((window, free_window))
    starts = np.concatenate((starts, free_starts))
    ends = np.concatenate((ends, free_ends))
    state = np.concatenate((state, np.full(len(free_window), int(State.PYTHON))))
    event = np.concatenate((event, np.full(len(free_window), -1)))
    cause, is_refilling = _refill(window, starts, ends, state)
    note = np.where(state == State.GARBAGE_COLLECTOR, _COLLECTING, _NONE)
    return _Pieces(
        gaps[window], starts, ends, cause, event, np.where(is_refilling, _REFILLING, note)
    )


def _refill(
    window: Int64Array, starts: Int64Array, ends: Int64Array, state: Int64Array
) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Cause of each segment; what refills the queue after a blocking call has the call's."""
    cause = _CAUSE_CODES[state]
    order = np.lexsort((starts, window))
    is_blocking = np.isin(state, [int(s) for s in BLOCKING])[order]
    # The last blocking segment at or before each, in the same gap.
    last = np.maximum.accumulate(np.where(is_blocking, np.arange(len(order)), -1))
    has_one = (last >= 0) & (window[order][last] == window[order])
    may_refill = (state == State.DISPATCH) | (
        (state == State.PYTHON) & (ends - starts <= REFILLING_PYTHON_NS)
    )
    refills = np.zeros(len(order), np.bool_)
    refills[order] = has_one
    refills &= may_refill
    before = np.zeros(len(order), np.int64)
    before[order] = cause[order][last]
    return np.where(refills, before, cause), refills


class _Clipped(NamedTuple):
    """Parts of segments that lie in windows, column by column."""

    row: Int64Array  # of the segment
    window: Int64Array  # row of the window
    start: Int64Array
    end: Int64Array


def _clip(segments: pl.DataFrame, windows: pl.DataFrame) -> _Clipped:
    """The parts of the segments that lie in the windows of their device."""
    parts = [_Clipped(*(np.zeros(0, np.int64) for _ in _Clipped._fields))]
    segment_device, window_device = segments["device"].to_numpy(), windows["device"].to_numpy()
    for device in np.unique(window_device):
        rows = np.nonzero(segment_device == device)[0]
        mine = np.nonzero(window_device == device)[0]
        starts = segments["start_ns"].to_numpy()[rows]
        ends = segments["end_ns"].to_numpy()[rows]
        window, first, last = intervals.clip_by_windows(
            intervals.Intervals(starts, ends),
            windows["start_ns"].to_numpy()[mine],
            windows["end_ns"].to_numpy()[mine],
        )
        index = np.searchsorted(starts, first, side="right") - 1
        parts.append(_Clipped(rows[index], mine[window], first, last))
    return _Clipped(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _inside(segments: pl.DataFrame, clipped: _Clipped) -> pl.DataFrame:
    return segments[clipped.row].with_columns(
        start_ns=pl.Series(clipped.start), end_ns=pl.Series(clipped.end)
    )


def _dur() -> pl.Expr:
    return pl.col("end_ns") - pl.col("start_ns")


def _causes(inside: pl.DataFrame, idle_ns: int, total_ns: int) -> pl.DataFrame:
    gap = inside["gap"].to_numpy()
    cause = inside["cause"].to_physical().to_numpy()
    length = (inside["end_ns"] - inside["start_ns"]).to_numpy()
    rows = []
    for code in np.unique(cause):
        mine = cause == code
        per_gap = np.bincount(gap[mine], weights=length[mine])  # doubles, exact up to 104 days
        rows.append(
            (
                CAUSES[code],
                int(length[mine].sum()),
                int(np.count_nonzero(per_gap)),
                int(per_gap.max()),
            )
        )
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "cause": pl.Enum(CAUSES),
        "idle_ns": pl.Int64,
        "gaps": pl.Int64,
        "longest_ns": pl.Int64,
    }
    return (
        pl.DataFrame(rows, schema=schema, orient="row")
        .sort("idle_ns", "cause", descending=[True, False])
        .select(
            "cause",
            "idle_ns",
            idle_share=pl.col("idle_ns") / max(1, idle_ns),
            total_share=pl.col("idle_ns") / max(1, total_ns),
            gaps="gaps",
            longest_ns="longest_ns",
        )
    )


def _with_activity(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Add `activity`: in words what explains each row, from its note and its `name_id`."""
    names = trace.names.select("name_id", "name").collect()
    # Which work waited says less than why it did, and refilling is no matter of single operators.
    by_note = pl.col("note").is_in([_NOTES[code] for code in (_WAITING, _LATENCY, _REFILLING)])
    return rows.join(names, on="name_id", how="left", maintain_order="left").with_columns(
        activity=pl.when(by_note)
        .then(pl.col("note").cast(pl.String))
        .otherwise(pl.coalesce("name", pl.col("note").cast(pl.String), pl.lit("between operators")))
    )


def _name_ids(trace: Trace, events: pl.Series) -> pl.Series:
    """name_id of events; null for null."""
    ids = trace.events.select("name_id").collect()["name_id"]
    if ids.is_empty():
        return pl.Series([None] * len(events), dtype=pl.UInt32)
    found = ids.gather(events.fill_null(0))
    return pl.select(pl.when(events.is_not_null()).then(found)).to_series()


def _names(trace: Trace, events: pl.Series) -> pl.Series:
    """Names of events; null for null."""
    ids = pl.DataFrame({"name_id": _name_ids(trace, events)})
    names = trace.names.select("name_id", "name").collect()
    return ids.join(names, on="name_id", how="left", maintain_order="left")["name"]


def _details(trace: Trace, inside: pl.DataFrame) -> pl.DataFrame:
    summed = (
        inside.with_columns(name_id=_name_ids(trace, inside["event"]))
        .group_by("cause", "note", "name_id")
        .agg(_dur().sum().alias("idle_ns"), pl.len().cast(pl.Int64).alias("stretches"))
    )
    return (
        _with_activity(trace, summed)
        .group_by("cause", "activity")
        .agg(pl.col("idle_ns", "stretches").sum())
        .sort("idle_ns", "activity", descending=[True, False])
        .head(MOST_DETAILS)
    )


def _steps(segments: pl.DataFrame, clipped: _Clipped, device_steps: pl.DataFrame) -> pl.DataFrame:
    codes = len(CAUSES)
    cause = segments["cause"].to_physical().to_numpy()[clipped.row].astype(np.int64)
    sums = np.zeros(len(device_steps) * codes, np.int64)
    np.add.at(sums, clipped.window * codes + cause, clipped.end - clipped.start)
    table = sums.reshape(len(device_steps), codes)
    columns = [f"{name}_ns" for name in CAUSES]
    return device_steps.select("device", "step").with_columns(
        idle_ns=pl.Series(table.sum(axis=1), dtype=pl.Int64),
        **{name: pl.Series(table[:, code], dtype=pl.Int64) for code, name in enumerate(columns)},
    )


def _longest(trace: Trace, gaps: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    """The longest gaps, each with the largest of its causes and its place in the trace."""
    # Doubles hold sums of nanoseconds exactly up to 104 days.
    length = np.bincount(
        inside["gap"].to_numpy(),
        weights=(inside["end_ns"] - inside["start_ns"]).to_numpy(),
        minlength=len(gaps),
    )
    chosen = np.argsort(-length, kind="stable")[:LONGEST]
    chosen = chosen[length[chosen] > 0]
    mine = inside.filter(pl.col("gap").is_in(chosen.tolist()))
    mine = _with_activity(trace, mine.with_columns(name_id=_name_ids(trace, mine["event"])))
    main = (
        mine.group_by("gap", "cause")
        .agg(
            _dur().sum().alias("cause_ns"),
            # Of the events that explain one cause the one with the largest part.
            pl.col("activity", "event", "start_ns", "end_ns").sort_by(_dur()).last(),
        )
        .sort("gap", "cause_ns", descending=[False, True])
        .unique("gap", keep="first", maintain_order=True)
        .select("gap", "cause", "cause_ns", "activity", "event", middle_ns=_middle())
    )
    # Where a scope cuts a gap, only the part inside it is shown.
    table = (
        mine.group_by("gap")
        .agg(pl.col("start_ns").min(), _dur().sum().alias("dur_ns"))
        .join(main, on="gap")
        .join(gaps.select("gap", "device", "step", "ended_by", "launch"), on="gap")
        .sort("dur_ns", "start_ns", descending=[True, False])
    )
    op = trace.derived.select("op").collect()["op"]
    ended = table["ended_by"]
    ops = (
        pl.select(pl.when(ended.is_not_null()).then(op.gather(ended.fill_null(0)))).to_series()
        if len(op)
        else ended
    )
    return table.select(
        "device",
        "step",
        "start_ns",
        "dur_ns",
        "cause",
        "cause_ns",
        "activity",
        "event",
        "ended_by",
        _names(trace, ended).alias("ended_by_name"),
        "launch",
        ops.alias("op"),
        _names(trace, ops).alias("op_name"),
        frame=pl.Series(_frames(trace, table), dtype=pl.String),
    )


def _middle() -> pl.Expr:
    return pl.col("start_ns") + (pl.col("end_ns") - pl.col("start_ns")) // 2


def _frames(trace: Trace, table: pl.DataFrame) -> list[str | None]:
    """The innermost Python frame of the launching thread in the middle of each row's cause."""
    frames = trace.names.filter(pl.col("category") == "python_function").collect()
    if frames.is_empty():
        return [None] * len(table)
    lanes = (
        trace.events.filter(pl.col("event").is_in(table["launch"].drop_nulls().implode()))
        .select("event", "lane_id")
        .collect()
    )
    lane_of = dict(lanes.iter_rows())
    spans = (
        trace.events.filter(
            pl.col("category") == "python_function",
            pl.col("lane_id").is_in(sorted(set(lane_of.values()))),
        )
        .select("name_id", "lane_id", "start_ns", end_ns=_end())
        .collect()
    )
    name_of = dict(frames.select("name_id", "name").iter_rows())
    found: list[str | None] = []
    for launch, middle in table.select("launch", "middle_ns").iter_rows():
        around = spans.filter(
            pl.col("lane_id") == lane_of.get(launch, -1),
            pl.col("start_ns") <= middle,
            pl.col("end_ns") > middle,
        ).sort("start_ns")
        found.append(name_of[around["name_id"][-1]] if len(around) else None)
    return found


def _end() -> pl.Expr:
    return pl.col("start_ns") + pl.col("dur_ns")
