"""Calls of the host that wait for the device, and what each waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.graph.kinds import NodeKind
from stepscope.analysis.graph.threads import CLOCK_SKEW_NS
from stepscope.analysis.graph.work import StepWork
from stepscope.analysis.selection.names import events_named, is_call
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.derive.unrecorded_work import frees_when_idle
from stepscope.trace.model import Trace

STREAM_SYNC, EVENT_SYNC, DEVICE_SYNC = "stream_sync", "event_sync", "device_sync"
STREAM_WAIT = "stream_wait"
_SYNC_CALL_NS = 4_000  # what a synchronising call takes of itself, at most
_SURE_WAIT_NS = 20_000


@dataclass(frozen=True)
class BacklogWaits:
    """Waits of the main thread for GPU work of earlier steps, in order.

    A call before all launches of the steps can wait for nothing else. Where the recorder let the
    devices finish first, it returned at once; in the steady state it waits. One that waits for work
    of these steps as well, such as a copy beside earlier work, is here if that has ended first.

    Attributes:
        end_ns: When it returned; its start where it did not wait.
        own: The place of each wait that is for work of these steps as well.
        own_work: Row of that work.
    """

    call: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    own: Int64Array
    own_work: Int64Array


@dataclass(frozen=True)
class Resolved:
    """Where threads are cut because of calls, and what blocking calls waited for.

    Attributes:
        wait_end_ns: When what it waited for had ended.
        wait_work: Row of the GPU work that it waited for.
        stream_wait_call: The calls that made a stream wait for another.
        stream_wait_ns: Start of each of these calls.
        backlog: Waits for work of earlier steps.
        carried_wait: Places of waits for the device on streams that have no earlier work here: for
            their last work of the steps before, if these steps come again.
        carried_work: Row of that work.
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
    backlog: BacklogWaits
    carried_wait: Int64Array
    carried_work: Int64Array


def resolve_calls(
    host_calls: pl.DataFrame,
    work: StepWork,
    records: pl.DataFrame,
    main_lane: int,
    until_ns: int,
    of_harness: pl.Series,
) -> Resolved:
    """Find what each blocking call waited for.

    Args:
        host_calls: The result of `read_calls`.
        records: What the recorder says of it, columns `sync_records.SYNC_RECORDS`.
        until_ns: Until when the devices were busy with work of earlier steps.
        of_harness: Calls that no step makes: see `calls.runtime_calls`.
    """
    with_call = records.drop_nulls("call").unique("call", keep="first", maintain_order=True)
    table = host_calls.join(
        with_call.select("awaited_lane", "until_ns", device="device", event="call"),
        on="event",
        how="left",
        maintain_order="left",
    )
    waits = table.filter(pl.col("role").is_in([STREAM_SYNC, EVENT_SYNC, DEVICE_SYNC]))
    row, target = _awaited(waits, work)
    call_start, returned = waits["start_ns"].to_numpy(), waits["end_ns"].to_numpy()
    is_on_main = (waits["lane_id"] == main_lane).to_numpy()
    over = np.full(len(waits), np.iinfo(np.int64).min)
    np.maximum.at(over, row, work.end_ns[target] + CLOCK_SKEW_NS)
    is_beyond = is_on_main & (call_start < until_ns) & (until_ns <= returned)
    is_beyond &= over < until_ns
    beyond = is_beyond[row]
    own_row, own_work = row[beyond], target[beyond]
    row, target = row[~beyond], target[~beyond]
    lane = waits["lane_id"].to_numpy()[row]
    call_end = waits["end_ns"].to_numpy()[row]
    start = np.minimum(waits["start_ns"].to_numpy()[row] + _SYNC_CALL_NS, call_end)
    # What a call waited for on any stream holds it up to the same moment.
    until = np.full(len(waits), np.iinfo(np.int64).min)
    np.maximum.at(until, row, np.clip(work.end_ns[target], start, call_end))
    end = until[row]
    copies = np.nonzero(
        (work.kind == NodeKind.MEMCPY)
        & (work.call >= 0)
        & (work.end_ns <= work.call_end_ns + CLOCK_SKEW_NS)
        & (np.minimum(work.end_ns, work.call_end_ns) > work.issue_ns)
    )[0]
    wait_lane = np.concatenate((lane, work.call_lane[copies]))
    wait_start = np.concatenate((start, work.issue_ns[copies]))
    wait_end = np.concatenate((end, np.minimum(work.end_ns, work.call_end_ns)[copies]))
    linked = np.nonzero(work.call >= 0)[0]
    launches = linked[np.unique(work.call[linked], return_index=True)[1]]
    streams = host_calls.filter(pl.col("role") == STREAM_WAIT)
    first_launch_ns = work.call_start_ns[linked].min() if len(linked) else until_ns
    is_first = (call_start < first_launch_ns) & (waits["role"] != EVENT_SYNC).to_numpy()
    is_first &= ~waits["event"].is_in(of_harness.implode()).to_numpy()
    is_backlog = is_on_main & ((call_start < until_ns) | is_first)
    is_backlog[row] = False
    earlier = np.nonzero(is_backlog)[0]
    returned = returned[earlier]
    has_waited = call_start[earlier] < until_ns
    earlier_end = np.where(has_waited, np.minimum(returned, until_ns), returned)
    begun = np.minimum(call_start[earlier] + _SYNC_CALL_NS, earlier_end)
    carried_wait, carried_work = _carried(waits, row, main_lane, work)
    backlog = BacklogWaits(
        waits["event"].to_numpy()[earlier],
        np.where(has_waited, begun, earlier_end),
        earlier_end,
        np.searchsorted(earlier, own_row),
        own_work,
    )
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
        backlog=backlog,
        carried_wait=carried_wait,
        carried_work=carried_work,
    )


def _carried(
    waits: pl.DataFrame, row: Int64Array, main_lane: int, work: StepWork
) -> tuple[Int64Array, Int64Array]:
    """What calls of the main thread wait for of the steps before, besides what `row` has."""
    is_device = (waits["role"] == DEVICE_SYNC) & (waits["lane_id"] == main_lane)
    calls, first_place = np.unique(row, return_index=True)
    known = is_device.to_numpy()[calls]
    calls, first_place = calls[known], first_place[known]
    start = waits["start_ns"].to_numpy()[calls]
    device = filled(waits["device"], -1)[calls]
    places, targets = [first_place[:0]], [row[:0]]
    for first, last in work.streams():
        is_new = work.call_start_ns[first] >= start
        mine = is_new & ((device < 0) | (device == work.device[first]))
        places.append(first_place[mine])
        targets.append(np.full(int(mine.sum()), last - 1, np.int64))
    return np.concatenate(places), np.concatenate(targets)


def read_calls(trace: Trace, lanes: tuple[int, ...], window: tuple[int, int]) -> pl.DataFrame:
    """Calls of threads in a window that synchronise, free memory or make streams wait, by start."""
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
    roles = trace.name_rows.select(role=pl.when(is_call()).then(role))["role"]
    events = events_named(trace, is_call() & role.is_not_null(), lanes)
    starts = trace.columns("start_ns")["start_ns"].to_numpy()[events]
    within = np.flatnonzero((starts >= window[0]) & (starts < window[1]))
    rows = events[within[np.argsort(starts[within], kind="stable")]]
    found = trace.columns("name_id", "lane_id", "start_ns", "dur_ns")[rows]
    end_ns = np.minimum((found["start_ns"] + found["dur_ns"]).to_numpy(), window[1])
    return pl.DataFrame(
        [
            pl.Series("event", rows, pl.Int64),
            found["name_id"],
            found["lane_id"].cast(pl.Int64),
            found["start_ns"],
            pl.Series("end_ns", end_ns),
            roles[found["name_id"]],
        ]
    )


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
    device = filled(calls["device"], -1)
    recorded_lane = filled(calls["awaited_lane"], -1)
    until = filled(calls["until_ns"], 0)
    is_recorded = calls["awaited_lane"].is_not_null().to_numpy()
    recorded = np.full(len(calls), -1, np.int64)
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
        mine = np.nonzero(recorded_lane == work.lane[first])[0]
        last_given = first + np.searchsorted(launched, until[mine]) - 1
        # Of work without a launch nobody knows when it was given: what ended later was no part.
        awaited = np.minimum(last_given, over[mine])
        recorded[mine] = np.where(awaited >= first, awaited, -1)
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
    single = np.where(is_recorded, recorded, single)
    mine = np.nonzero(~is_device & (single >= 0))[0]
    return (
        np.concatenate([*rows, mine]).astype(np.int64),
        np.concatenate([*targets, single[mine]]).astype(np.int64),
    )
