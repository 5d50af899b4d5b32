"""The device's side of the graph of a step: GPU work, the calls behind it, and blocking calls."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.allocations import frees_when_idle
from stepscope.analysis.graph.host import CLOCK_SKEW_NS
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.names import is_call
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.ordering import by_group_and_time, distinct_groups
from stepscope.trace.model import Trace
from stepscope.trace.schema import Kind

_KINDS = {"compute": 1, "communication": 2, "memcpy": 3, "memset": 4}
_KIND_CODES = np.array([_KINDS.get(kind.value, 1) for kind in Kind], np.int8)
_FIRST = np.iinfo(np.int64).min
_LARGEST_SKEW_NS = 20_000
_ISSUE_NS = 10_000  # what a copy that blocks needs to be handed over, at most
_SYNC_CALL_NS = 4_000  # what a synchronising call takes of itself, at most
_SURE_WAIT_NS = 20_000
STREAM_SYNC, EVENT_SYNC, DEVICE_SYNC = "stream_sync", "event_sync", "device_sync"
STREAM_WAIT = "stream_wait"


@dataclass(frozen=True)
class StepWork:
    """GPU work of the steps of a graph, sorted by stream, then time.

    Attributes:
        event: Number of each event.
        start_ns: Start.
        end_ns: End.
        lane: Stream.
        device: GPU.
        kind: 1 compute, 2 communication, 3 copy, 4 fill.
        step: Index of the step that launched it.
        call: The launching call; -1: none.
        call_lane: Its thread; -1: none.
        call_start_ns: Its start; for work without one that of the work before it on its stream.
        call_end_ns: Its end.
        issue_ns: When the work left the host; its own start for work without a call.
        earlier_end_ns: For the first work of each stream the end of the last work before it that is
            not of these steps; 0: none, and for all other work.
        unlinked: Number of events without a launching call.
        skewed: Number of events whose call is ignored, because it began too late.
    """

    event: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    lane: Int64Array
    device: Int64Array
    kind: npt.NDArray[np.int8]
    step: Int64Array
    call: Int64Array
    call_lane: Int64Array
    call_start_ns: Int64Array
    call_end_ns: Int64Array
    issue_ns: Int64Array
    earlier_end_ns: Int64Array
    unlinked: int
    skewed: int

    def __len__(self) -> int:
        return len(self.event)

    @property
    def launch_lanes(self) -> tuple[int, ...]:
        """Threads that launched work."""
        return tuple(distinct_groups(self.call_lane[self.call >= 0]))

    def streams(self) -> list[tuple[int, int]]:
        """First row, and the row after the last, of each stream."""
        change = np.nonzero(self.lane[1:] != self.lane[:-1])[0] + 1
        edges = [0, *change.tolist(), len(self)]
        return list(pairwise(edges)) if len(self) else []


def read_work(trace: Trace, steps: pl.Series | None) -> StepWork:
    """Read GPU work and its launching calls.

    Args:
        trace: The trace.
        steps: Numbers of the steps, in order; None: the whole trace as one step.
    """
    everything = recorded_work(trace).select(
        "event", "lane_id", "device", "start_ns", "end_ns", "step", "launch", "kind"
    )
    if steps is None:
        found = everything.with_columns(index=pl.lit(0, pl.Int64))
    else:
        place = pl.Series(range(len(steps)), dtype=pl.Int64)
        index = everything["step"].replace_strict(steps.cast(pl.Int32), place, default=None)
        found = everything.with_columns(index=index).filter(pl.col("index").is_not_null())
    calls = trace.columns("lane_id", "start_ns", "dur_ns")
    call = found["launch"].fill_null(-1).to_numpy().astype(np.int64)
    call_start = np.where(call >= 0, calls["start_ns"].to_numpy()[call], 0)
    order = by_group_and_time(
        found["lane_id"].to_numpy(),
        found["start_ns"].to_numpy(),
        found["end_ns"].to_numpy(),
        np.where(call >= 0, call_start, _FIRST),
        found["event"].to_numpy(),
    )
    rows, call, call_start = found[order], call[order], call_start[order]
    start = rows["start_ns"].to_numpy()
    linked = call >= 0
    call_lane = np.where(linked, calls["lane_id"].to_numpy()[call], -1).astype(np.int64)
    call_end = np.where(linked, call_start + calls["dur_ns"].to_numpy()[call], 0)
    skewed = linked & (start < call_start - _LARGEST_SKEW_NS)
    unlinked = int((~linked).sum())
    linked &= ~skewed
    call, call_lane = np.where(linked, call, -1), np.where(linked, call_lane, -1)
    lane = rows["lane_id"].to_numpy().astype(np.int64)
    first_start = _first_of_call(call, start)
    blocks = linked & (rows["kind"] == "memcpy").to_numpy() & _copy_is_over(rows, call_end)
    limit = np.where(blocks, np.minimum(call_start + _ISSUE_NS, call_end), call_end)
    issue = np.where(linked, np.minimum(limit, first_start), start)
    return StepWork(
        event=rows["event"].to_numpy().astype(np.int64),
        start_ns=start,
        end_ns=rows["end_ns"].to_numpy(),
        lane=lane,
        device=rows["device"].fill_null(-1).to_numpy().astype(np.int64),
        kind=_KIND_CODES[rows["kind"].to_physical().to_numpy()],
        step=rows["index"].to_numpy().astype(np.int64),
        call=call,
        call_lane=call_lane,
        call_start_ns=_fill_from_before(call_start, linked, lane, start),
        call_end_ns=np.where(linked, call_end, start),
        issue_ns=issue,
        earlier_end_ns=_earlier_ends(everything, lane, start),
        unlinked=unlinked,
        skewed=int(skewed.sum()),
    )


def _earlier_ends(everything: pl.DataFrame, lane: Int64Array, start: Int64Array) -> Int64Array:
    """For the first row of each stream the end of what ran on it before; else 0."""
    ends = np.zeros(len(lane), np.int64)
    first = np.nonzero(np.concatenate(([True], lane[1:] != lane[:-1])))[0] if len(lane) else lane
    firsts = pl.DataFrame({"lane_id": lane[first], "first_ns": start[first], "row": first})
    before = (
        everything.lazy()
        .select(pl.col("lane_id").cast(pl.Int64), "start_ns", "end_ns")
        .join(firsts.lazy(), on="lane_id")
        .filter(pl.col("start_ns") < pl.col("first_ns"))
        .group_by("row")
        .agg(pl.col("end_ns").max())
        .collect()
    )
    ends[before["row"].to_numpy()] = before["end_ns"].to_numpy()
    return ends


def _first_of_call(call: Int64Array, start: Int64Array) -> Int64Array:
    """For each row the earliest start of what its call launched (a graph launches much)."""
    if not len(call):
        return start
    order = np.argsort(call, kind="stable")
    ordered = call[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    earliest = np.empty(len(call), np.int64)
    least = np.minimum.reduceat(start[order], np.nonzero(first)[0])
    earliest[order] = least[np.cumsum(first) - 1]
    return np.where(call >= 0, earliest, start)


def _copy_is_over(rows: pl.DataFrame, call_end: Int64Array) -> BoolArray:
    """Whether the call returned after the copy was done."""
    over: BoolArray = rows["end_ns"].to_numpy() <= call_end + CLOCK_SKEW_NS
    return over


def _fill_from_before(
    values: Int64Array, valid: BoolArray, lane: Int64Array, otherwise: Int64Array
) -> Int64Array:
    """Each row's value, or that of the last valid row before it on its lane."""
    rows = np.arange(len(values))
    last = np.maximum.accumulate(np.where(valid, rows, -1)) if len(values) else rows
    known = last >= 0
    same = known & (lane[np.maximum(last, 0)] == lane)
    return np.where(same, values[np.maximum(last, 0)], otherwise)


@dataclass(frozen=True)
class Resolved:
    """Where threads are cut because of calls, and what blocking calls waited for.

    Attributes:
        cut_lane: Thread of each cut.
        cut_ns: Moment of each cut.
        wait_lane: Thread of each wait.
        wait_start_ns: Its start.
        wait_end_ns: Its end: when what it waited for had ended.
        wait_work: Row of the GPU work that it waited for.
        wait_call: The blocking call.
        stream_wait_call: The calls that made a stream wait for another.
        stream_wait_lane: Thread of each.
        stream_wait_ns: Start of it.
    """

    cut_lane: Int64Array
    cut_ns: Int64Array
    wait_lane: Int64Array
    wait_start_ns: Int64Array
    wait_end_ns: Int64Array
    wait_work: Int64Array
    wait_call: Int64Array
    stream_wait_call: Int64Array
    stream_wait_lane: Int64Array
    stream_wait_ns: Int64Array


@dataclass(frozen=True)
class HostCalls:
    """Calls that synchronise, free memory or make streams wait, sorted by start."""

    table: pl.DataFrame

    def resolve(self, work: StepWork, records: pl.DataFrame) -> Resolved:
        """Find what each blocking call waited for.

        Args:
            work: The GPU work.
            records: What the recorder says of it, columns `sync_records.SYNC_RECORDS`.
        """
        told = records.drop_nulls("call").unique("call", keep="first", maintain_order=True)
        table = self.table.join(
            told.select("awaited_lane", "until_ns", device="device", event="call"),
            on="event",
            how="left",
            maintain_order="left",
        )
        waits = table.filter(pl.col("role").is_in([STREAM_SYNC, EVENT_SYNC, DEVICE_SYNC]))
        row, target = _awaited(waits, work)
        lane = waits["lane_id"].to_numpy()[row]
        call_end = waits["end_ns"].to_numpy()[row]
        start = np.minimum(waits["start_ns"].to_numpy()[row] + _SYNC_CALL_NS, call_end)
        # What a call waited for on any stream holds it up to the same moment.
        until = np.zeros(len(waits), np.int64)
        np.maximum.at(until, row, np.clip(work.end_ns[target], start, call_end))
        end = until[row]
        copies = np.nonzero(
            (work.kind == _KINDS["memcpy"])
            & (work.call >= 0)
            & (work.end_ns <= work.call_end_ns + CLOCK_SKEW_NS)
            & (np.minimum(work.end_ns, work.call_end_ns) > work.issue_ns)
        )[0]
        wait_lane = np.concatenate((lane, work.call_lane[copies]))
        wait_start = np.concatenate((start, work.issue_ns[copies]))
        wait_end = np.concatenate((end, np.minimum(work.end_ns, work.call_end_ns)[copies]))
        linked = np.nonzero(work.call >= 0)[0]
        by_call = linked[np.argsort(work.call[linked], kind="stable")]
        calls = work.call[by_call]
        launches = by_call[np.concatenate(([True], calls[1:] != calls[:-1]))[: len(by_call)]]
        streams = self.table.filter(pl.col("role") == STREAM_WAIT)
        return Resolved(
            cut_lane=np.concatenate((work.call_lane[launches], wait_lane, wait_lane)),
            cut_ns=np.concatenate((work.issue_ns[launches], wait_start, wait_end)),
            wait_lane=wait_lane,
            wait_start_ns=wait_start,
            wait_end_ns=wait_end,
            wait_work=np.concatenate((target, copies)),
            wait_call=np.concatenate((waits["event"].to_numpy()[row], work.call[copies])),
            stream_wait_call=streams["event"].to_numpy(),
            stream_wait_lane=streams["lane_id"].to_numpy(),
            stream_wait_ns=streams["start_ns"].to_numpy(),
        )


def read_calls(trace: Trace, lanes: tuple[int, ...], window: tuple[int, int]) -> HostCalls:
    """Read the calls of some threads within a window."""
    name, group = pl.col("name"), pl.col("group")
    role = (
        pl.when((group == "sync") & name.str.contains("(?i)stream"))
        .then(pl.lit(STREAM_SYNC))
        .when((group == "sync") & name.str.contains("(?i)event"))
        .then(pl.lit(EVENT_SYNC))
        .when((group == "sync") | frees_when_idle())
        .then(pl.lit(DEVICE_SYNC))
        .when(group == "stream_wait")
        .then(pl.lit(STREAM_WAIT))
    )
    names = trace.names.filter(is_call()).select("name_id", role=role).drop_nulls("role").collect()
    table = (
        trace.events.filter(
            pl.col("lane_id").is_in(lanes),
            pl.col("name_id").is_in(names["name_id"].implode()),
            pl.col("start_ns") >= window[0],
            pl.col("start_ns") < window[1],
        )
        .select(
            "event",
            "name_id",
            pl.col("lane_id").cast(pl.Int64),
            "start_ns",
            end_ns=(pl.col("start_ns") + pl.col("dur_ns")).clip(upper_bound=window[1]),
        )
        .collect()
        .join(names, on="name_id")
        .sort("start_ns", "event")
    )
    return HostCalls(table)


def _awaited(calls: pl.DataFrame, work: StepWork) -> tuple[Int64Array, Int64Array]:
    """Rows of blocking calls, and of the GPU work that each had to wait for.

    A stream's work ends in the order of its launches. A call that synchronises a device returns
    when all that was launched before it has ended, on every stream. One that synchronises a stream
    or an event waits for one stream. Where a record says for which, and until when the work was
    given that counts, it is the last of that work. Where none does, it is the stream whose work
    ended last within the call, else, when nothing was left to wait for, the one that was given
    work last. A call that waits for an event may leave later work running; there the work
    that ended shortly before it returned is taken.
    """
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    is_device = (calls["role"] == DEVICE_SYNC).to_numpy()
    device = calls["device"].fill_null(-1).to_numpy()
    told_lane = calls["awaited_lane"].fill_null(-1).to_numpy()
    until = calls["until_ns"].fill_null(0).to_numpy()
    is_told = calls["awaited_lane"].is_not_null().to_numpy()
    told = np.full(len(calls), -1, np.int64)
    rows, targets = [], []
    best = np.full(len(calls), -1, np.int64)
    best_end = start.copy()
    newest = np.full(len(calls), -1, np.int64)
    newest_launch = np.full(len(calls), np.iinfo(np.int64).min)
    partial = np.full(len(calls), -1, np.int64)
    partial_end = np.maximum(end - _SURE_WAIT_NS, start)
    for first, last in work.streams():
        launched = np.maximum.accumulate(work.call_start_ns[first:last])
        ended = np.maximum.accumulate(work.end_ns[first:last])
        before = first + np.searchsorted(launched, start) - 1
        over = first + np.searchsorted(ended, end + CLOCK_SKEW_NS, side="right") - 1
        has_any = before >= first
        all_over = has_any & (over >= before)
        mine = np.nonzero(all_over & is_device & ((device < 0) | (device == work.device[first])))[0]
        rows.append(mine)
        targets.append(before[mine])
        mine = np.nonzero(told_lane == work.lane[first])[0]
        last_given = first + np.searchsorted(launched, until[mine]) - 1
        # Of work without a launch nobody knows when it was given: what ended later was no part.
        awaited = np.minimum(last_given, over[mine])
        told[mine] = np.where(awaited >= first, awaited, -1)
        given = work.call_start_ns[np.maximum(before, 0)]
        later = has_any & (given > newest_launch)
        newest[later], newest_launch[later] = np.where(all_over, before, -1)[later], given[later]
        ends = work.end_ns[np.maximum(before, 0)]
        better = all_over & (ends > best_end)
        best[better], best_end[better] = before[better], ends[better]
        ends = work.end_ns[np.maximum(over, 0)]
        better = has_any & (over >= first) & (over < before) & (ends > partial_end)
        partial[better], partial_end[better] = over[better], ends[better]
    may_be_partial = (calls["role"] == EVENT_SYNC).to_numpy() & (end - start > _SURE_WAIT_NS)
    single = np.where(best >= 0, best, np.where(may_be_partial, partial, -1))
    single = np.where(single >= 0, single, newest)
    single = np.where(is_told, told, single)
    mine = np.nonzero(~is_device & (single >= 0))[0]
    return (
        np.concatenate([*rows, mine]).astype(np.int64),
        np.concatenate([*targets, single[mine]]).astype(np.int64),
    )
