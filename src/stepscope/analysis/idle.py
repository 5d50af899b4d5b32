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
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.gpu_work import GpuWork, gpu_work
from stepscope.analysis.host_activity import BLOCKING, HostActivity, State, host_activity
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
_WAITING, _LATENCY, _REFILLING, _COLLECTING = (
    "queued work waits",
    "launch latency",
    "refilling",
    "garbage collector",
)

SEGMENTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "gap": pl.Int64,  # row of the gap
    "device": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cause": pl.Enum(CAUSES),
    "event": pl.Int64,  # the host event that explains it; null: none was recorded
    "note": pl.String,  # what kind of waiting, where the event does not say it
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
        details: Causes by what explains them: cause, activity, idle_ns, gaps; the largest 50.
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


def idle_causes(trace: Trace, scope: Scope | None = None) -> IdleCauses:
    """Divide the idle time of the devices by its causes.

    Raises:
        UsageError: The scope names steps or devices that the trace does not have.
    """
    work = gpu_work(trace, scope)
    gaps = _find_gaps(work)
    activity = host_activity(trace, work.table)
    segments = _cut(trace, gaps, activity)
    inside = _clip(segments, work.windows)
    by_step = _clip(segments, work.device_steps)
    idle = inside["end_ns"] - inside["start_ns"]
    total_ns = int((work.windows["end_ns"] - work.windows["start_ns"]).sum())
    idle_ns = int(idle.sum())
    causes = _causes(inside, idle_ns, total_ns)
    names = _names(trace, inside["event"])
    return IdleCauses(
        idle_ns=idle_ns,
        total_ns=total_ns,
        causes=causes,
        details=_details(inside, names),
        steps=_steps(by_step, work.device_steps),
        longest=_longest(trace, gaps, inside, names),
        gaps=gaps,
        segments=inside.drop("step"),
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
        ending = (
            rows.with_columns(began=_launch_order(rows))
            .sort("start_ns", "began", "event")
            .unique("start_ns", keep="first", maintain_order=True)
            .select(
                "step",
                "launch",
                end_ns="start_ns",
                ended_by="event",
            )
        )
        parts.append(
            pl.DataFrame({"start_ns": holes.starts, "end_ns": holes.ends})
            .join(ending, on="end_ns", how="left", maintain_order="left")
            .with_columns(device=pl.lit(device))
        )
    if not parts:
        return pl.DataFrame(schema=GAPS)
    return (
        pl.concat(parts)
        .with_row_index("gap")
        .select(pl.col(name).cast(dtype) for name, dtype in GAPS.items())
    )


def _launch_order(rows: pl.DataFrame) -> pl.Series:
    """Calls are numbered in file order, which only breaks ties here; unlinked work comes last."""
    return rows["launch"].fill_null(np.iinfo(np.int64).max)


def _cut(trace: Trace, gaps: pl.DataFrame, activity: HostActivity) -> pl.DataFrame:
    """Cut the gaps where their cause changes."""
    calls = (
        trace.events.filter(pl.col("event").is_in(gaps["launch"].drop_nulls().implode()))
        .select(
            "lane_id",
            launch="event",
            called_ns="start_ns",
            returned_ns=pl.col("start_ns") + pl.col("dur_ns"),
        )
        .collect()
    )
    rows = gaps.join(calls, on="launch", how="left", maintain_order="left")
    known = rows.filter(pl.col("returned_ns").is_not_null())
    turn = pl.col("returned_ns").clip(pl.col("start_ns"), pl.col("end_ns"))
    known = known.with_columns(turn_ns=turn)
    was_queued = pl.col("returned_ns") <= pl.col("start_ns")
    pieces = [
        rows.filter(pl.col("returned_ns").is_null()).select(
            "gap", "device", "start_ns", "end_ns", cause=pl.lit(_UNKNOWN, pl.Int64),
            event=pl.lit(None, pl.Int64),
            note=pl.when(pl.col("ended_by").is_null())
            .then(pl.lit("nothing followed"))
            .otherwise(pl.lit("launch not recorded")),
        ),
        known.filter(pl.col("turn_ns") < pl.col("end_ns")).select(
            "gap", "device", pl.col("turn_ns").alias("start_ns"), "end_ns",
            cause=pl.lit(_DEVICE_WAIT, pl.Int64), event=pl.col("ended_by"),
            note=pl.when(was_queued).then(pl.lit(_WAITING)).otherwise(pl.lit(_LATENCY)),
        ),
    ]  # fmt: skip
    late = known.filter(pl.col("turn_ns") > pl.col("start_ns"))
    for (lane,), mine in late.group_by(["lane_id"], maintain_order=True):
        pieces.append(_divide(activity, int(lane), mine))
    return (
        pl.concat(pieces)
        .sort("device", "start_ns")
        .with_columns(pl.lit(pl.Series(CAUSES)).gather(pl.col("cause")).alias("cause"))
        .select(pl.col(name).cast(dtype) for name, dtype in SEGMENTS.items())
    )


def _divide(activity: HostActivity, lane: int, late: pl.DataFrame) -> pl.DataFrame:
    """Divide the host's part of gaps by what their launching thread did."""
    did = activity.by_lane[lane]
    first, last = late["start_ns"].to_numpy(), late["turn_ns"].to_numpy()
    stretches = intervals.Intervals(did.starts, did.ends)
    window, starts, ends = intervals.clip_by_windows(stretches, first, last)
    index = np.searchsorted(did.starts, starts, side="right") - 1
    state, by_lane = did.states[index], did.lanes[index]
    rest = intervals.complement(
        intervals.merge(did.starts, did.ends), int(first.min()), int(last.max())
    )
    free_window, free_starts, free_ends = intervals.clip_by_windows(rest, first, last)
    window = np.concatenate((window, free_window))
    starts = np.concatenate((starts, free_starts))
    ends = np.concatenate((ends, free_ends))
    state = np.concatenate((state, np.full(len(free_window), int(State.PYTHON))))
    event = np.concatenate(
        (activity.event_at(by_lane, state[: len(by_lane)], starts[: len(by_lane)]),
         np.full(len(free_window), -1))
    )  # fmt: skip
    cause, is_refilling = _refill(window, starts, ends, state)
    return pl.DataFrame(
        {
            "gap": late["gap"].to_numpy()[window],
            "device": late["device"].to_numpy()[window],
            "start_ns": starts,
            "end_ns": ends,
            "cause": cause.astype(np.int64),
            "event": event,
            "refills": is_refilling,
            "collects": state == State.GARBAGE_COLLECTOR,
        }
    ).select(
        "gap",
        "device",
        "start_ns",
        "end_ns",
        "cause",
        pl.when(pl.col("event") >= 0).then("event").alias("event"),
        pl.when("refills")
        .then(pl.lit(_REFILLING))
        .when("collects")
        .then(pl.lit(_COLLECTING))
        .alias("note"),
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


def _clip(segments: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """The parts of the segments that lie in the windows, with the window's step."""
    parts = []
    for (device,), mine in windows.group_by(["device"], maintain_order=True):
        rows = segments.filter(pl.col("device") == device)
        starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        window, first, last = intervals.clip_by_windows(
            intervals.Intervals(starts, ends),
            mine["start_ns"].to_numpy(),
            mine["end_ns"].to_numpy(),
        )
        index = np.searchsorted(starts, first, side="right") - 1
        parts.append(
            rows[index].with_columns(
                start_ns=pl.Series(first, dtype=pl.Int64),
                end_ns=pl.Series(last, dtype=pl.Int64),
                step=mine["step"][window],
            )
        )
    if not parts:
        return segments.clear().with_columns(step=pl.lit(None, pl.Int32))
    return pl.concat(parts)


def _dur() -> pl.Expr:
    return pl.col("end_ns") - pl.col("start_ns")


def _causes(inside: pl.DataFrame, idle_ns: int, total_ns: int) -> pl.DataFrame:
    per_gap = inside.group_by("cause", "gap").agg(_dur().sum().alias("idle_ns"))
    return (
        per_gap.group_by("cause")
        .agg(
            pl.col("idle_ns").sum(),
            gaps=pl.len().cast(pl.Int64),
            longest_ns=pl.col("idle_ns").max(),
        )
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


def _names(trace: Trace, events: pl.Series) -> pl.DataFrame:
    """Event and name of those that are mentioned."""
    wanted = events.drop_nulls().unique()
    return (
        trace.events.filter(pl.col("event").is_in(wanted.implode()))
        .select("event", "name_id")
        .join(trace.names.select("name_id", "name"), on="name_id")
        .select("event", "name")
        .collect()
    )


def _activity() -> pl.Expr:
    # Which work waited says less than why it did, and refilling is no matter of single operators.
    return (
        pl.when(pl.col("note").is_in([_WAITING, _LATENCY, _REFILLING]))
        .then("note")
        .otherwise(pl.coalesce("name", "note", pl.lit("between operators")))
    )


def _details(inside: pl.DataFrame, names: pl.DataFrame) -> pl.DataFrame:
    return (
        inside.join(names, on="event", how="left")
        .group_by("cause", activity=_activity())
        .agg(_dur().sum().alias("idle_ns"), pl.col("gap").n_unique().cast(pl.Int64).alias("gaps"))
        .sort("idle_ns", "activity", descending=[True, False])
        .head(MOST_DETAILS)
    )


def _steps(by_step: pl.DataFrame, device_steps: pl.DataFrame) -> pl.DataFrame:
    sums = by_step.group_by("device", "step").agg(
        _dur().sum().alias("idle_ns"),
        *(_dur().filter(pl.col("cause") == cause).sum().alias(f"{cause}_ns") for cause in CAUSES),
    )
    return (
        device_steps.select("device", "step")
        .join(sums, on=["device", "step"], how="left", maintain_order="left")
        .fill_null(0)
    )


def _longest(
    trace: Trace, gaps: pl.DataFrame, inside: pl.DataFrame, names: pl.DataFrame
) -> pl.DataFrame:
    """The longest gaps, each with the largest of its causes and its place in the trace."""
    longest = (
        inside.group_by("gap")
        .agg(pl.col("start_ns").min(), _dur().sum().alias("dur_ns"))
        .sort("dur_ns", "start_ns", descending=[True, False])
        .head(LONGEST)
        .with_row_index("rank")
    )
    mine = inside.join(longest.select("gap"), on="gap", how="semi").join(
        names, on="event", how="left"
    )
    main = (
        mine.with_columns(activity=_activity())
        .group_by("gap", "cause")
        .agg(
            _dur().sum().alias("cause_ns"),
            # Of the events that explain one cause the one with the largest part.
            pl.col("activity", "event", "start_ns", "end_ns").sort_by(_dur()).last(),
        )
        .sort("gap", "cause_ns", descending=[False, True])
        .unique("gap", keep="first", maintain_order=True)
        .select("gap", "cause", "cause_ns", "activity", "event", middle_ns=_middle())
    )
    ended = gaps.join(longest.select("gap"), on="gap", how="semi")
    mentioned = _names(trace, ended["ended_by"]).rename(
        {"event": "ended_by", "name": "ended_by_name"}
    )
    ops = (
        trace.derived.select("event", "op")
        .filter(pl.col("event").is_in(ended["ended_by"].drop_nulls().implode()))
        .collect()
    )
    op_names = ops.join(
        _names(trace, ops["op"]).rename({"event": "op", "name": "op_name"}), on="op", how="left"
    ).rename({"event": "ended_by"})
    table = (
        longest.join(main, on="gap", how="left")
        .join(ended.select("gap", "device", "step", "ended_by", "launch"), on="gap", how="left")
        .join(mentioned, on="ended_by", how="left")
        .join(op_names, on="ended_by", how="left")
        .sort("rank")
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
        "ended_by_name",
        "launch",
        "op",
        "op_name",
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
