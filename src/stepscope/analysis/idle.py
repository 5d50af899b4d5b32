"""Why the GPU was idle: every gap of every device, divided by cause.

Definitions
    A gap is a stretch of a device's time in which none of its streams runs anything. Before the
    first work of the first step it begins with that step. The work that begins at its end ended
    it; of several the one that was launched first.
    The call that launched this work tells whose fault the gap is:

    device_wait      The call had returned before the gap began: the work was in the queue, and
                     waited for another stream or an event, or for the device to take it up. And
                     what lies between the end of the call and the end of the gap: launch latency.
                     Work that the device starts by itself, such as MTIA's `dma_request`, waited
                     for the device too.
    graph_gap        The work belongs to a captured graph (CUDA graph): what lies between its
                     kernels, and between the end of the call that launched the graph and its first
                     kernel.
    Otherwise the host was late: the gap up to the end of the launching call is divided by what
    the launching thread did in it (`host.causes` has the definitions and their precedence):
    profiler, compilation, garbage_collection, input, waiting_for_communication, allocation
                     As defined there.
    synchronisation  A call that waits for the device, and the refilling after it: dispatching
                     that follows it in the same gap, and Python of up to 0.2 ms at a stretch.
    pageable_copy    Copying to the device by a call that blocks, with its refilling.
    annotated_phase  Saving a checkpoint, evaluating, or another annotation without launches.
    op_dispatch      Operators and calls: the host launches more slowly than the device works.
    cpu_operators    Operators that compute on the CPU for half a millisecond or longer.
    one_off          A call or first run that costs far more than its like, once (`calls.one_off`).
    backward         Between operators of autograd, or in a range named backward, where nothing was
                     recorded. Only in traces without Python frames.
    python           Nothing but Python: between operators and calls.
    not_recorded     The same in a trace without Python frames: what the host did was not recorded.
    unknown          The call was not recorded, or kernels of the launches before it were not, so
                     that the device may not have been idle.

The causes add up to the idle time of the timeline of the same scope, to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl

from stepscope.analysis.calls.call_sites import frames_at, names_of_events
from stepscope.analysis.calls.parents import operators_of_events
from stepscope.analysis.host.activity import host_activity
from stepscope.analysis.host.idle_gaps import (
    BY_DEVICE,
    GRAPH_STARTS,
    IDLE_CAUSES,
    IN_GRAPH,
    LATENCY,
    LOST,
    NOTES,
    REFILLING,
    WAITING,
    Clipped,
    clip,
    cut,
    find_gaps,
)
from stepscope.analysis.selection.gpu_work import GpuWork, gpu_work
from stepscope.analysis.selection.scope import AnsweredScope, Scope, memoized
from stepscope.trace.arrays.nullable import gathered
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.model import Trace

LONGEST = 10
MOST_DETAILS = 50
_EXPLAINED_BY_NOTE = (WAITING, LATENCY, REFILLING, GRAPH_STARTS, IN_GRAPH, BY_DEVICE, LOST)


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
        gaps: Every gap, with the columns of `idle_gaps.GAPS`.
        segments: Every gap cut by cause, with the columns of
            `idle_gaps.SEGMENTS`, clipped to the scope.
    """

    idle_ns: int
    total_ns: int = field(metadata={"label": "in all"})
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
        idle_ns: dict[str, int] = dict(self.causes["cause", "idle_ns"].iter_rows())
        return idle_ns.get(cause, 0)


@memoized
def idle_causes(trace: Trace, scope: Scope | None = None) -> IdleCauses:
    """Divide the idle time of the devices by its causes."""
    work, gaps, segments, inside = _cut_gaps(trace, scope)
    return replace(
        _times(work, segments, inside),
        details=_details(trace, inside),
        longest=_longest(trace, gaps, inside),
        gaps=gaps,
        segments=inside,
    )


@memoized
def idle_times(trace: Trace, scope: Scope | None = None) -> IdleCauses:
    """The same for who asks for no single gap: without the tables that grow with the trace."""
    work, gaps, segments, inside = _cut_gaps(trace, scope, with_events=False)
    del gaps  # there may be a million, and sums do without
    return _times(work, segments, inside)


def _cut_gaps(
    trace: Trace, scope: Scope | None, *, with_events: bool = True
) -> tuple[GpuWork, pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The gaps of a scope, cut by cause: all segments, and those clipped to the scope."""
    work = gpu_work(trace, scope)
    gaps = find_gaps(trace, work)
    segments = cut(trace, gaps, host_activity(trace, work.table, with_events=with_events))
    if not with_events:
        segments = segments.drop("event", "note")
    return work, gaps, segments, _inside(segments, clip(segments, work.windows))


def _times(work: GpuWork, segments: pl.DataFrame, inside: pl.DataFrame) -> IdleCauses:
    idle_ns = int((inside["end_ns"] - inside["start_ns"]).sum())
    total_ns = int((work.windows["end_ns"] - work.windows["start_ns"]).sum())
    none = pl.DataFrame()
    return IdleCauses(
        idle_ns=idle_ns,
        total_ns=total_ns,
        causes=_causes(inside, idle_ns, total_ns),
        details=none,
        steps=_steps(segments, clip(segments, work.device_steps), work.device_steps),
        longest=none,
        gaps=none,
        segments=none,
        scope=work.answered,
        notes=(*work.notes, *work.notes_on_windows),
    )


def _inside(segments: pl.DataFrame, clipped: Clipped) -> pl.DataFrame:
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
    for code in distinct_groups(cause):
        mine = cause == code
        per_gap = np.bincount(gap[mine], weights=length[mine])  # doubles, exact up to 104 days
        rows.append(
            (
                IDLE_CAUSES[code],
                int(length[mine].sum()),
                int(np.count_nonzero(per_gap)),
                int(per_gap.max()),
            )
        )
    schema: dict[str, pl.DataType | type[pl.DataType]] = {
        "cause": pl.Enum(IDLE_CAUSES),
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
    names = trace.name_rows["name"][rows["name_id"]]
    # Which work waited says less than why it did, and refilling is no matter of single operators.
    by_note = pl.col("note").is_in([NOTES[code] for code in _EXPLAINED_BY_NOTE])
    note = pl.col("note").cast(pl.String)
    return rows.hstack([names]).with_columns(
        activity=pl.when(by_note)
        .then(note)
        .otherwise(pl.coalesce("name", note, pl.lit("between operators")))
    )


def _name_ids(trace: Trace, events: pl.Series) -> pl.Series:
    ids = trace.columns("name_id")["name_id"]
    if ids.is_empty():
        return pl.Series([None] * len(events), dtype=pl.UInt32)
    return gathered(ids, events)


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
        .sort("idle_ns", "activity", "cause", descending=[True, False, False])
        .head(MOST_DETAILS)
    )


def _steps(segments: pl.DataFrame, clipped: Clipped, device_steps: pl.DataFrame) -> pl.DataFrame:
    codes = len(IDLE_CAUSES)
    cause = segments["cause"].to_physical().to_numpy()[clipped.row].astype(np.int64)
    sums = np.zeros(len(device_steps) * codes, np.int64)
    np.add.at(sums, clipped.window * codes + cause, clipped.end - clipped.start)
    table = sums.reshape(len(device_steps), codes)
    columns = [f"{name}_ns" for name in IDLE_CAUSES]
    return device_steps["device", "step"].with_columns(
        idle_ns=pl.Series(table.sum(axis=1), dtype=pl.Int64),
        **{name: pl.Series(table[:, code], dtype=pl.Int64) for code, name in enumerate(columns)},
    )


def _longest(trace: Trace, gaps: pl.DataFrame, inside: pl.DataFrame) -> pl.DataFrame:
    # Doubles hold sums of nanoseconds exactly up to 104 days.
    length = np.bincount(
        inside["gap"].to_numpy(),
        weights=(inside["end_ns"] - inside["start_ns"]).to_numpy(),
        minlength=len(gaps),
    )
    # Of all gaps only those that can be among the longest are sorted.
    least = np.partition(length, -LONGEST)[-LONGEST] if len(length) > LONGEST else 0
    candidates = np.nonzero((length >= least) & (length > 0))[0]
    chosen = candidates[np.argsort(-length[candidates], kind="stable")[:LONGEST]]
    mine = inside.filter(pl.col("gap").is_in(chosen.tolist()))
    mine = _with_activity(trace, mine.with_columns(name_id=_name_ids(trace, mine["event"])))
    main = (
        mine.group_by("gap", "cause")
        .agg(
            _dur().sum().alias("cause_ns"),
            # Of the events that explain one cause the one with the largest part.
            pl.col("activity", "event", "start_ns", "end_ns")
            .sort_by(_dur(), maintain_order=True)
            .last(),
        )
        .sort("gap", "cause_ns", "cause", descending=[False, True, False])
        .unique("gap", keep="first", maintain_order=True)
        .select(
            *("gap", "cause", "cause_ns", "activity", "event"),
            middle_ns=pl.col("start_ns") + _dur() // 2,
        )
    )
    # Where a scope cuts a gap, only the part inside it is shown.
    table = (
        mine.group_by("gap")
        .agg(pl.col("start_ns").min(), _dur().sum().alias("dur_ns"))
        .join(main, on="gap")
        .join(gaps["gap", "device", "step", "ended_by", "launch"], on="gap")
        .sort("dur_ns", "start_ns", "gap", descending=[True, False, False])
    )
    op = operators_of_events(trace)
    ended = table["ended_by"]
    ops = gathered(op, ended) if len(op) else ended
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
        names_of_events(trace, ended).alias("ended_by_name"),
        "launch",
        ops.cast(pl.Int64).alias("op"),
        names_of_events(trace, ops).alias("op_name"),
        frame=pl.Series(_frames(trace, table), dtype=pl.String),
    )


def _frames(trace: Trace, table: pl.DataFrame) -> list[str | None]:
    """The innermost Python frame of the launching thread in the middle of each row's cause."""
    lanes = trace.columns("lane_id")["lane_id"]
    of_launch = [None if launch is None else int(lanes[launch]) for launch in table["launch"]]
    return frames_at(trace, of_launch, table["middle_ns"].to_list())
