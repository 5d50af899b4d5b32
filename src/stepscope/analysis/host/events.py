"""The events of host threads with the cause of each, and the time of threads divided by cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.call_sites import has_stacks
from stepscope.analysis.calls.one_off import one_off_calls
from stepscope.analysis.calls.parents import operators_of_events
from stepscope.analysis.calls.runtime_calls import TO_DEVICE, TO_HOST, blocking_copies
from stepscope.analysis.host.causes import (
    CAUSES,
    NO_CAUSE,
    ON_CPU_NS,
    HostCause,
    cause_of_names,
)
from stepscope.analysis.host.waits import communication_waits, input_waits
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.names import (
    events_named,
    events_with_names,
    is_call,
    is_operator,
    is_step,
    names_that,
    times_of,
)
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array, Intervals
from stepscope.trace.arrays.nullable import are_among, distinct, filled
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.model import Trace
from stepscope.trace.session import Session, kept

_NODE = "autograd::engine::evaluate_function"
_BACKWARD = r"(?i)^#{0,2} ?backward ?#{0,2}$"
"""What a range of a whole backward is called."""


@dataclass(frozen=True, eq=False)
class Stretches:
    """Time divided by cause: stretches in order that do not overlap.

    Two stretches that touch have different causes.
    """

    starts: Int64Array
    ends: Int64Array
    causes: npt.NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class HostEvents:
    """Events of host threads with their cause; those that only enclose are not among them.

    Attributes:
        table: lane_id, event (-1: no event shows it), start_ns, end_ns, cause (a `HostCause`) and
            is_work (whether it is an operator or a call), sorted by start.
        has_stacks: Whether Python frames were recorded, so that the rest of the time is Python.
    """

    table: pl.DataFrame
    has_stacks: bool = True
    session: Session = field(default_factory=Session, init=False, repr=False, compare=False)

    def on(self, lanes: tuple[int, ...]) -> HostEvents:
        """The same of some threads only."""
        if set(distinct_groups(self.table["lane_id"].to_numpy())) <= set(lanes):
            return self
        return replace(self, table=self.table.filter(pl.col("lane_id").is_in(lanes)))

    def of(self, *causes: HostCause, lanes: tuple[int, ...] | None = None) -> Intervals:
        """The moments inside events of these causes, whatever else they may lie in."""
        cause, lane = self.table["cause"].to_numpy(), self.table["lane_id"].to_numpy()
        is_mine = np.logical_or.reduce([cause == one for one in causes])
        if lanes is not None:
            is_mine &= np.logical_or.reduce([lane == one for one in lanes])
        starts, ends = self.table["start_ns"].to_numpy(), self.table["end_ns"].to_numpy()
        return intervals.merge(starts[is_mine], ends[is_mine])

    def claims(self, lane: int) -> list[Intervals]:
        """For each of `CAUSES` but the last its own moments on a thread; no two share any."""
        return self._claims.get(lane) or [intervals.empty()] * (len(CAUSES) - 1)

    def stretches(self, lane: int) -> Stretches:
        """The same in order of time: what a thread did from when to when."""
        return self._stretches.get(lane) or _in_order(self.claims(lane))

    @kept
    def _claims(self) -> dict[int, list[Intervals]]:
        lane, cause = self.table["lane_id"].to_numpy(), self.table["cause"].to_numpy()
        start, end = self.table["start_ns"].to_numpy(), self.table["end_ns"].to_numpy()
        found = {}
        for one in distinct_groups(lane):
            rows = np.nonzero(lane == one)[0]
            found[one] = claims_by_sets(start[rows], end[rows], cause[rows])
        return found

    @kept
    def _stretches(self) -> dict[int, Stretches]:
        return {lane: _in_order(claims) for lane, claims in self._claims.items()}

    def of_cause(
        self,
        cause: HostCause,
        lanes: npt.NDArray[np.integer[Any]],
        starts: Int64Array,
        ends: Int64Array,
    ) -> Int64Array:
        """Time of one cause in each window of some thread."""
        found = np.zeros(len(starts), np.int64)
        for lane in distinct_groups(lanes):
            if len(own := self.claims(lane)[cause]):
                mine = np.flatnonzero(lanes == lane)
                found[mine] = intervals.covered(own, starts[mine], ends[mine])
        return found

    def divide(self, lane: int, starts: Int64Array, ends: Int64Array) -> Int64Array:
        """Time per cause in each window of a thread: one row per cause, one column per window.

        The rows add up to the windows' lengths.
        """
        did = self.stretches(lane)
        stretches = Intervals(did.starts, did.ends)
        window, row, first, last = intervals.clip_by_windows(stretches, starts, ends)
        divided = np.zeros((len(CAUSES), len(starts)), np.int64)
        np.add.at(divided, (did.causes[row], window), last - first)
        divided[-1] = np.maximum(ends - starts, 0) - divided.sum(axis=0)
        return divided

    def divide_each(
        self, lanes: npt.NDArray[np.integer[Any]], starts: Int64Array, ends: Int64Array
    ) -> Int64Array:
        """The same of windows of several threads."""
        divided = np.zeros((len(CAUSES), len(starts)), np.int64)
        for lane in distinct_groups(lanes):
            mine = np.flatnonzero(lanes == lane)
            divided[:, mine] = self.divide(lane, starts[mine], ends[mine])
        return divided


def _in_order(claims: list[Intervals]) -> Stretches:
    starts = np.concatenate([own.starts for own in claims])
    order = np.argsort(starts, kind="stable")  # of a few runs in order, so that it is quick
    ends = np.concatenate([own.ends for own in claims])
    codes = np.repeat(np.arange(len(claims), dtype=np.int8), [len(own) for own in claims])
    return Stretches(starts[order], ends[order], codes[order])


def claims_by_sets(
    start: Int64Array, end: Int64Array, cause: npt.NDArray[np.int8]
) -> list[Intervals]:
    """For each of `CAUSES` but the last its own moments, from the events of one thread."""
    rows = (np.nonzero(cause == code)[0] for code in range(len(CAUSES) - 1))
    return by_precedence(intervals.merge(start[mine], end[mine]) for mine in rows)


def by_precedence(sets: Iterable[Intervals]) -> list[Intervals]:
    """Of each set the moments that none before it has."""
    claims = []
    claimed = intervals.empty()
    for own in sets:
        claims.append(intervals.difference(own, claimed))
        claimed = intervals.union(claimed, own)
    return claims


_NO_COMPUTING = (
    # These may wait for other ranks.
    r"^(_?c10d|gloo|nccl|mpi|ucc|xccl|record_param_comms)"
    # These make views of a tensor, maybe thousands.
    r"|^aten::((unsafe_)?(split|chunk|unbind)|split_with_sizes|tensor_split|unflatten_dense_tensors)"
)
_CALLS = (
    HostCause.SYNCHRONISATION,
    HostCause.ALLOCATION,
    HostCause.PAGEABLE_COPY,
    HostCause.LAUNCH,
)


def host_events(trace: Trace, lanes: tuple[int, ...]) -> HostEvents:
    """The events of some host threads that tell what each thread was doing.

    The cause of a moment does not depend on which threads, steps or devices are asked for: copies
    and launches are those of the whole trace.
    """
    feeding = _feeding_lanes(trace)
    if set(lanes) <= set(feeding):
        return events_of_feeding_lanes(trace).on(lanes)
    return _read(trace, lanes)


@memoized
def _feeding_lanes(trace: Trace) -> tuple[int, ...]:
    return tuple(sorted(feeding_lanes(trace, recorded_work(trace))))


def feeding_lanes(trace: Trace, work: pl.DataFrame) -> list[int]:
    """The main thread, then those that launched some GPU work, the busiest first."""
    lanes = trace.columns("lane_id")["lane_id"][distinct(work["launch"])]
    counts = lanes.value_counts(name="launches").sort(
        "launches", "lane_id", descending=[True, False]
    )
    main = [] if trace.main_lane is None else [trace.main_lane]
    return [*main, *(lane for lane in counts["lane_id"].to_list() if lane not in main)]


@memoized
def events_of_feeding_lanes(trace: Trace) -> HostEvents:
    """The events of the threads that launch GPU work, and of the main thread."""
    return _read(trace, _feeding_lanes(trace))


def _read(trace: Trace, lanes: tuple[int, ...]) -> HostEvents:
    names = trace.name_rows
    cause_of = cause_of_names(names)
    events = trace.columns("name_id", "lane_id", "start_ns", "dur_ns")
    name_id = events["name_id"].to_numpy()
    row = events_with_names(trace, cause_of != NO_CAUSE, lanes)
    start = events["start_ns"].to_numpy()[row]
    if (start[1:] < start[:-1]).any():
        # Files hold each thread's events more or less in order: this sort makes use of that.
        order = np.argsort(start, kind="stable")
        row, start = row[order], start[order]
    cause = cause_of[name_id[row]]
    end = start + events["dur_ns"].to_numpy()[row]
    lane = events["lane_id"].to_numpy()[row].astype(np.int64)
    is_work = names_that(trace, is_operator() | (is_call() & ~is_step()))[name_id[row]]
    work = recorded_work(trace)
    frames = has_stacks(trace)
    own = _with_blocking_copies(trace, work, row, cause)
    if len(work):
        own = _with_operators_on_cpu(names, name_id[row], own, lane, start, end)
    if not frames:
        is_backward = names_that(trace, pl.col("name").str.contains(_BACKWARD))[name_id[row]]
        own = np.where(is_backward & (own == HostCause.ANNOTATION), HostCause.BACKWARD, own)
        own = own.astype(np.int8)
    # An annotation with a launch in it, or without GPU work an operator, is the step's own work.
    launches = are_among(work["launch"], trace.event_count)
    marks_the_step = launches[row] if len(work) else is_work
    own = _without_enclosing(own, lane, start, end, marks_the_step)
    kept = own != NO_CAUSE
    if not kept.all():
        row, start, end, lane = row[kept], start[kept], end[kept], lane[kept]
        own, is_work = own[kept], is_work[kept]
    table = pl.DataFrame(
        {
            "lane_id": lane.astype(np.int32),
            "event": row.astype(np.int32),
            "start_ns": start,
            "end_ns": end,
            "cause": own,
            "is_work": is_work,
        }
    )
    added = [
        (lane, found, cause)
        for cause, waits in (
            (HostCause.COMMUNICATION, communication_waits(trace, lanes)),
            (HostCause.INPUT, input_waits(trace, lanes)),
        )
        for lane, found in waits.items()
    ]
    if not frames:
        added += [(lane, _backward(trace, lane), HostCause.BACKWARD) for lane in lanes]
    one_offs = one_off_calls(trace, lanes=lanes)
    is_load = names_that(trace, pl.col("group") == "module_load")[name_id[row]]
    table = _without_one_off_loads(table, one_offs, is_load)
    return HostEvents(_with(table, added, one_offs), has_stacks=frames)


def _without_one_off_loads(
    table: pl.DataFrame, one_offs: pl.DataFrame, is_load: BoolArray
) -> pl.DataFrame:
    """Without loads of modules that are one-off calls, or in one, and in no compiler's range.

    Args:
        is_load: Which rows of the table are loads.
    """
    lane, start, end = (table[name].to_numpy() for name in ("lane_id", "start_ns", "end_ns"))
    compiles = table["cause"] == int(HostCause.COMPILATION)
    loads = compiles & pl.Series(is_load)
    if not loads.any() or one_offs.is_empty():
        return table
    apart = loads.to_numpy().copy()
    once = one_offs["lane_id"].to_numpy()
    for one in distinct_groups(lane[apart]):
        spans = intervals.merge(
            one_offs["start_ns"].to_numpy()[once == one], one_offs["end_ns"].to_numpy()[once == one]
        )
        apart[lane == one] &= intervals.contains(spans, start[lane == one])
    ranges = (compiles & ~loads).to_numpy()
    for one in distinct_groups(lane[apart]):
        mine = ranges & (lane == one)
        apart[lane == one] &= ~intervals.contains(
            intervals.merge(start[mine], end[mine]), start[lane == one]
        )
    return table.filter(~pl.Series(apart))


def _with_blocking_copies(
    trace: Trace, work: pl.DataFrame, row: Int64Array, cause: npt.NDArray[np.int8]
) -> npt.NDArray[np.int8]:
    copies = blocking_copies(trace, work)
    copies = copies.filter(copies["launch"].is_not_null())
    if copies.is_empty():
        return cause
    cause = cause.copy()
    launch, group = copies["launch"].to_numpy(), copies["group"]
    down, up = (np.unique(launch[(group == way).to_numpy()]) for way in (TO_HOST, TO_DEVICE))
    cause[np.isin(row, down) & (cause == HostCause.LAUNCH)] = HostCause.SYNCHRONISATION
    is_call = np.isin(cause, (HostCause.SYNCHRONISATION, HostCause.LAUNCH))
    cause[np.isin(row, up) & is_call] = HostCause.PAGEABLE_COPY
    # A pageable copy is followed by a synchronisation of its own, in the same operator.
    operators = operators_of_events(trace)
    copying = distinct(operators[up])
    waits = np.nonzero(cause == HostCause.SYNCHRONISATION)[0]
    operator = filled(operators[row[waits]], -1)
    cause[waits[np.isin(operator, copying)]] = HostCause.PAGEABLE_COPY
    return cause


def _with_operators_on_cpu(
    names: pl.DataFrame,
    name_id: Int64Array,
    cause: npt.NDArray[np.int8],
    lane: Int64Array,
    starts: Int64Array,
    ends: Int64Array,
) -> npt.NDArray[np.int8]:
    """With the cause of operators that compute on the CPU: they do more than to call others."""
    is_long = (cause == HostCause.DISPATCH) & (ends - starts >= ON_CPU_NS)
    if not is_long.any():
        return cause
    exempt = names.select(pl.col("name").str.contains(_NO_COMPUTING).fill_null(value=False))
    is_long[is_long] = ~exempt["name"].to_numpy()[name_id[is_long]]
    cause = cause.copy()
    for one in distinct_groups(lane[is_long]):
        mine = np.flatnonzero(is_long & (lane == one))
        calls = starts[np.isin(cause, _CALLS) & (lane == one)]  # sorted, as all rows are
        inside = np.searchsorted(calls, ends[mine]) - np.searchsorted(calls, starts[mine])
        # The innermost of them: what an outer one takes is mostly theirs.
        is_inner = np.append(ends[mine][:-1] <= starts[mine][1:], True)
        mine = mine[(inside == 0) & is_inner]
        within = np.flatnonzero((lane == one) & ~is_long)
        within = within[
            intervals.contains(intervals.merge(starts[mine], ends[mine]), starts[within])
        ]
        called = intervals.merge(starts[within], ends[within])
        own_ns = ends[mine] - starts[mine] - intervals.covered(called, starts[mine], ends[mine])
        cause[mine[own_ns >= ON_CPU_NS]] = HostCause.CPU_OPERATOR
    return cause


def _without_enclosing(
    cause: npt.NDArray[np.int8],
    lane: Int64Array,
    starts: Int64Array,
    ends: Int64Array,
    is_launch: BoolArray,
) -> npt.NDArray[np.int8]:
    """Take the cause from annotations that something is launched in."""
    is_annotation = cause == HostCause.ANNOTATION
    if not is_annotation.any():
        return cause
    cause = cause.copy()
    for one in distinct_groups(lane[is_annotation]):
        marks = np.nonzero(is_annotation & (lane == one))[0]
        launched = starts[is_launch & (lane == one)]  # sorted, as all rows are
        inside = np.searchsorted(launched, ends[marks]) - np.searchsorted(launched, starts[marks])
        cause[marks[inside > 0]] = NO_CAUSE
    return cause


def _backward(trace: Trace, lane: int) -> Intervals:
    """The moments between the first and the last operator of each backward on a thread.

    Two nodes of autograd belong to one backward unless another operator begins between them, on
    their thread or on the main thread.
    """
    nodes = events_named(trace, is_operator() & pl.col("name").str.starts_with(_NODE), (lane,))
    if len(nodes) < 2:
        return intervals.empty()
    merged = intervals.merge(*times_of(trace, nodes))
    lanes = {lane} if trace.main_lane is None else {lane, trace.main_lane}
    others = times_of(trace, events_named(trace, is_operator(), sorted(lanes)))[0]
    others.sort(kind="stable")
    gap_starts, gap_ends = merged.ends[:-1], merged.starts[1:]
    is_broken = np.searchsorted(others, gap_ends) > np.searchsorted(others, gap_starts)
    first = np.concatenate(([True], is_broken))
    last = np.concatenate((is_broken, [True]))
    return Intervals(merged.starts[first], merged.ends[last])


def _with(
    table: pl.DataFrame,
    added: list[tuple[int, Intervals, HostCause]],
    one_offs: pl.DataFrame,
) -> pl.DataFrame:
    """The table with what no event of its own shows, and with the one-off calls."""
    parts = [table]
    for lane, found, cause in added:
        if len(found):
            parts.append(
                table.clear(len(found)).with_columns(
                    lane_id=pl.lit(lane, table.schema["lane_id"]),
                    event=pl.lit(-1, table.schema["event"]),
                    start_ns=pl.Series(found.starts),
                    end_ns=pl.Series(found.ends),
                    cause=pl.lit(int(cause), pl.Int8),
                    is_work=pl.lit(value=False),
                )
            )
    if len(one_offs):
        parts.append(
            one_offs.select(
                pl.col("lane_id").cast(table.schema["lane_id"]),
                pl.col("event").cast(table.schema["event"]),
                "start_ns",
                "end_ns",
                cause=pl.lit(int(HostCause.ONE_OFF), pl.Int8),
                is_work=pl.lit(value=False),
            )
        )
    return pl.concat(parts).sort("start_ns", maintain_order=True) if len(parts) > 1 else table
