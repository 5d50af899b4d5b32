"""The gaps of each device, and each gap cut where what explains it changes.

Definitions stand in `idle`. Here they become columns: gaps, the work that ended each, the return
of its launching call, what the launching thread did until then, and the refilling after a blocking
call. Everything is done for all gaps at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.runtime_calls import GraphPlace, graph_places
from stepscope.analysis.host.activity import HostActivity, host_activity
from stepscope.analysis.host.causes import BLOCKING, HostCause
from stepscope.analysis.selection.gpu_work import GpuWork, gpu_work
from stepscope.analysis.selection.lost_work import lost_work
from stepscope.analysis.selection.names import names_that
from stepscope.analysis.selection.partition import IDLE_LABELS
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import distinct, filled, gathered, nullable
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.classify import is_started_by_device
from stepscope.trace.model import Trace

IDLE_CAUSES = tuple(IDLE_LABELS)
"""Why a device may be idle."""
REFILLING_PYTHON_NS = 200_000
"""Python of up to this length after a blocking call counts as refilling the queue."""
OF_THE_HOST: dict[HostCause, str] = {cause: cause.word.replace(" ", "_") for cause in HostCause} | {
    # Two that the critical path tells apart: launching calls and the operators around them keep
    # the device waiting alike, and so do annotations of either kind.
    HostCause.COMPILATION: "compilation",
    HostCause.LAUNCH: "op_dispatch",
    HostCause.DISPATCH: "op_dispatch",
    HostCause.ANNOTATION: "annotated_phase",
    HostCause.CPU_OPERATOR: "cpu_operators",
    HostCause.ONE_OFF: "one_off",
    HostCause.BACKWARD: "backward",
}
"""The cause of idle time that each cause of the host makes."""
_DEVICE_WAIT, _UNKNOWN = IDLE_CAUSES.index("device_wait"), IDLE_CAUSES.index("unknown")
_GRAPH_GAP = IDLE_CAUSES.index("graph_gap")
_PYTHON, _NOT_RECORDED_CAUSE = IDLE_CAUSES.index("python"), IDLE_CAUSES.index("not_recorded")
_CAUSE_CODES = np.array([IDLE_CAUSES.index(OF_THE_HOST[cause]) for cause in HostCause])
NOTES = (
    "queued work waits",
    "launch latency",
    "refilling",
    "launch not recorded",
    "nothing followed",
    "another thread communicates",
    "a graph starts",
    "between a graph's kernels",
    "the device starts a copy by itself",
    "kernels before it not recorded",
)
(
    WAITING,
    LATENCY,
    REFILLING,
    _NOT_RECORDED,
    _NOTHING,
    _COMMUNICATING,
    GRAPH_STARTS,
    IN_GRAPH,
    BY_DEVICE,
    LOST,
) = range(len(NOTES))
_NONE = -1

SEGMENTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "gap": pl.Int64,  # row of the gap
    "device": pl.Int32,
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "cause": pl.Enum(IDLE_CAUSES),
    "event": pl.Int64,  # the host event that explains it; null: none was recorded
    "note": pl.Enum(NOTES),  # what kind of waiting, where the event does not say it
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
    "graph": pl.Int8,  # where that work stands in a captured graph: `GraphPlace`
    "by_device": pl.Boolean,  # whether the device starts that work itself
}
"""One row per gap."""


def find_gaps(trace: Trace, work: GpuWork) -> pl.DataFrame:
    """All gaps of the devices, from their first window's start to their last one's end."""
    spans = pl.concat([work.windows, work.device_steps])
    started = trace.columns("start_ns")["start_ns"].to_numpy()
    is_by_device = names_that(trace, is_started_by_device(pl.col("name")))
    lasting = work.table.with_columns(
        graph=pl.Series(graph_places(trace, work.table)),
        by_device=pl.Series(is_by_device[work.table["name_id"].to_numpy()]),
    ).filter(pl.col("dur_ns") > 0)
    parts = []
    for device in distinct(spans["device"]).tolist():
        rows = lasting.filter(pl.col("device") == device)
        mine = spans.filter(pl.col("device") == device)
        starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        first = min([*starts[:1].tolist(), *mine["start_ns"].to_list()])
        last = max([*ends.max(initial=first, keepdims=True).tolist(), *mine["end_ns"].to_list()])
        holes = intervals.complement(intervals.merge(starts, ends), first, last)
        ended_by = _ending_rows(rows, starts, holes.ends, started)
        ending = rows.select("step", "launch", "graph", "by_device", ended_by="event")
        parts.append(
            ending.select(pl.all().gather(_or_null(ended_by))).with_columns(
                start_ns=pl.Series(holes.starts),
                end_ns=pl.Series(holes.ends),
                device=pl.lit(device),
            )
        )
    if not parts:
        return pl.DataFrame(schema=GAPS)
    return (
        pl.concat(parts)
        .with_row_index("gap")
        .with_columns(
            pl.col("graph").fill_null(int(GraphPlace.NONE)),
            pl.col("by_device").fill_null(value=False),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in GAPS.items())
    )


def _ending_rows(
    rows: pl.DataFrame, starts: Int64Array, ends: Int64Array, started: Int64Array
) -> Int64Array:
    """For each end of a gap the row that began then, the first launched of several; -1: none.

    Args:
        rows: GPU work, with the call that launched each.
        started: When each event of the trace started.
    """
    low = np.searchsorted(starts, ends)
    high = np.searchsorted(starts, ends, "right")
    found = np.where(high > low, low, -1)
    several = np.nonzero(high - low > 1)[0]
    if len(several):
        launch = filled(rows["launch"], -1)
        launched = np.where(launch >= 0, started[launch], np.iinfo(np.int64).max)
        for gap in several:
            found[gap] = low[gap] + int(np.argmin(launched[low[gap] : high[gap]]))
    return found


def cut(trace: Trace, gaps: pl.DataFrame, activity: HostActivity) -> pl.DataFrame:
    """Cut the gaps where their cause changes."""
    start, end = gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()
    launch = filled(gaps["launch"], -1)
    graph = gaps["graph"].to_numpy()
    ended_by = filled(gaps["ended_by"], -1)
    calls = trace.columns("lane_id", "start_ns", "dur_ns")[np.maximum(launch, 0)]
    returned = (calls["start_ns"] + calls["dur_ns"]).to_numpy()
    lane = calls["lane_id"].to_numpy()
    known = launch >= 0
    # Once a graph runs, its later kernels wait for no call, even if the call returns late.
    turn = np.where(graph == GraphPlace.INSIDE, start, np.clip(returned, start, end))
    starts_graph = (graph == GraphPlace.FIRST) & (returned > start)

    # Where kernels of launches before it are missing, nobody knows whether the device was idle.
    is_lost = known & lost_work(trace).precede(lane, calls["start_ns"].to_numpy())
    known &= ~is_lost
    by_device = ~known & ~is_lost & gaps["by_device"].to_numpy()
    unknown = np.nonzero(~known & ~by_device)[0]
    started = np.nonzero(by_device)[0]
    waits = np.nonzero(known & (turn < end))[0]
    pieces = [
        _Pieces(
            unknown,
            start[unknown],
            end[unknown],
            np.full(len(unknown), _UNKNOWN),
            np.full(len(unknown), -1),
            np.select([is_lost[unknown], ended_by[unknown] < 0], [LOST, _NOTHING], _NOT_RECORDED),
        ),
        _Pieces(
            started,
            start[started],
            end[started],
            np.full(len(started), _DEVICE_WAIT),
            ended_by[started],
            np.full(len(started), BY_DEVICE),
        ),
        _Pieces(
            waits,
            turn[waits],
            end[waits],
            np.where(
                starts_graph[waits] | (graph[waits] == GraphPlace.INSIDE), _GRAPH_GAP, _DEVICE_WAIT
            ),
            ended_by[waits],
            np.select(
                [
                    graph[waits] == GraphPlace.INSIDE,
                    starts_graph[waits],
                    returned[waits] <= start[waits],
                ],
                [IN_GRAPH, GRAPH_STARTS, WAITING],
                LATENCY,
            ),
        ),
    ]
    is_late = known & (turn > start)
    for one in distinct_groups(lane[is_late]):
        late = np.nonzero(is_late & (lane == one))[0]
        pieces.append(_divide(activity, one, late, start[late], turn[late]))
    gap, first, last, cause, event, note = (
        np.concatenate(column, dtype=np.int64) for column in zip(*pieces, strict=True)
    )
    if not activity.has_stacks:
        cause = np.where(cause == _PYTHON, _NOT_RECORDED_CAUSE, cause)
    # Gaps are numbered by device and time, so that within a device time alone is the order.
    device = gaps["device"].to_numpy()[gap]
    alone = len(device) == 0 or bool((device == device[0]).all())
    order = np.argsort(first, kind="stable") if alone else np.lexsort((first, device))
    gap = gap[order]
    return pl.DataFrame(
        {
            "gap": gap,
            "device": gaps["device"][gap],
            "start_ns": first[order],
            "end_ns": last[order],
            "cause": _enumerated(IDLE_CAUSES, cause[order]),
            "event": _or_null(event[order]),
            "note": _enumerated(NOTES, note[order]),
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


def _enumerated(labels: tuple[str, ...], codes: Int64Array) -> pl.Series:
    """Codes as an enumeration; negative ones are null."""
    return gathered(pl.Series(labels, dtype=pl.Enum(labels)), _or_null(codes))


def _or_null(values: Int64Array) -> pl.Series:
    return nullable(values, values >= 0, "")


def _divide(
    activity: HostActivity, lane: int, gaps: Int64Array, first: Int64Array, last: Int64Array
) -> _Pieces:
    did = activity.by_lane[lane]
    stretches = intervals.Intervals(did.starts, did.ends)
    window, row, starts, ends = intervals.clip_by_windows(stretches, first, last)
    doing, by_lane = did.causes[row], did.lanes[row]
    event = activity.event_at(by_lane, doing, starts)
    rest = intervals.complement(
        intervals.merge(did.starts, did.ends), int(first.min()), int(last.max())
    )
    free_window, _, free_starts, free_ends = intervals.clip_by_windows(rest, first, last)
    window = np.concatenate((window, free_window))
    starts = np.concatenate((starts, free_starts))
    ends = np.concatenate((ends, free_ends))
    doing = np.concatenate((doing, np.full(len(free_window), HostCause.PYTHON, np.int8)))
    event = np.concatenate((event, np.full(len(free_window), -1)))
    cause, is_refilling = _refill(window, starts, ends, doing)
    note = np.where(doing == HostCause.COMMUNICATION, _COMMUNICATING, _NONE)
    return _Pieces(
        gaps[window], starts, ends, cause, event, np.where(is_refilling, REFILLING, note)
    )


def _refill(
    window: Int64Array, starts: Int64Array, ends: Int64Array, doing: npt.NDArray[np.int8]
) -> tuple[Int64Array, BoolArray]:
    """Cause of each segment; what refills the queue after a blocking call has the call's."""
    cause = _CAUSE_CODES[doing]
    order = np.lexsort((starts, window))
    is_blocking = np.isin(doing, BLOCKING)[order]
    # The last blocking segment at or before each, in the same gap.
    last = np.maximum.accumulate(np.where(is_blocking, np.arange(len(order)), -1))
    has_one = (last >= 0) & (window[order][last] == window[order])
    may_refill = (doing == HostCause.DISPATCH) | (
        ((doing == HostCause.PYTHON) | (doing == HostCause.BACKWARD))
        & (ends - starts <= REFILLING_PYTHON_NS)
    )
    refills = np.zeros(len(order), np.bool_)
    refills[order] = has_one
    refills &= may_refill
    before = np.zeros(len(order), np.int64)
    before[order] = cause[order][last]
    return np.where(refills, before, cause), refills


class Clipped(NamedTuple):
    """Parts of segments that lie in windows, column by column."""

    row: Int64Array  # of the segment
    window: Int64Array  # row of the window
    start: Int64Array
    end: Int64Array


def clip(segments: pl.DataFrame, windows: pl.DataFrame) -> Clipped:
    """The parts of the segments that lie in the windows of their device."""
    parts = []
    segment_device, window_device = segments["device"].to_numpy(), windows["device"].to_numpy()
    for device in np.unique(window_device):
        rows = np.nonzero(segment_device == device)[0]
        mine = np.nonzero(window_device == device)[0]
        starts = segments["start_ns"].to_numpy()[rows]
        ends = segments["end_ns"].to_numpy()[rows]
        window, row, first, last = intervals.clip_by_windows(
            intervals.Intervals(starts, ends),
            windows["start_ns"].to_numpy()[mine],
            windows["end_ns"].to_numpy()[mine],
        )
        parts.append(Clipped(rows[row], mine[window], first, last))
    if not parts:
        return Clipped(*(np.zeros(0, np.int64) for _ in Clipped._fields))
    if len(parts) == 1:
        return parts[0]
    return Clipped(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def idle_segments(trace: Trace) -> pl.DataFrame:
    """The idle time of every device cut by cause, over the file and all its steps.

    Columns `idle_gaps.SEGMENTS`, in the trace's own time, sorted by device and start.
    """
    work = gpu_work(trace)
    segments = cut(trace, find_gaps(trace, work), host_activity(trace, work.table))
    return segments.filter(pl.col("end_ns") > pl.col("start_ns")).sort("device", "start_ns")
