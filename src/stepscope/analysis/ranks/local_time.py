"""What a rank did between its collectives, by cause, and what went on beside them.

Definitions
    A rank's local time before a collective: from the latest end of any collective that started
    before it to its own start; before the first one, from the start of the first step (without
    steps, of the first GPU work). Parts that overlap another collective are no local time.
    On a GPU the time is divided by what the device did: computing, copying without computing, and
    idle time by its cause (`idle`). On a CPU it is divided by what the main thread did
    (`host.causes`), where operators do the computing.
    Waiting for other communication, for the device itself and for what was not recorded has no
    cause here: the causes need not add up to the local time.
    What a rank gets done beside a collective: the GPU's computing and copying while the collective
    runs; on a CPU, the main thread's operators. It would still have to be done if the collective
    took less time. What a CPU does between operators does not count: a main thread that waits
    there may look like one that works.
    The device's own time up to a collective: when its compute stream had done what was launched
    before the collective, on a clock that stands still while the stream waits for collectives: in
    gaps that a collective ends, if what comes next was launched by then, and while the host waits
    for one. A collective needs that work
    unless it starts before the work is done. Nothing is known before the stream has done anything,
    where several streams compute, and of a stage of a pipeline that begins with a receive.
    The host's own time up to a collective: from the first launch of one to the launch of this one,
    less what a launching thread spent in calls that wait for the GPU, or that a full queue
    kept. A host that runs ahead of its GPU gets so far however long collectives take.
    The work's own time since the launch of a collective: how long after that launch the device had
    done what was launched before it, had it begun each piece of work as soon after its launch as
    any, or when it was done with the one before, and waited for no collective. Only work counts
    that was launched since the collective before, and since the host last waited for the GPU: a
    host that launches such work late holds the collective up by that work too, not by its own
    launch alone.
    Waits of the host for the work's own time: what is left of that time of the work launched since
    the launch of the collective before, and since the host last waited, when the host begins to
    wait for it. A host that waits for a GPU, and launches more only then, waits so long however
    short collectives are. Only where the work is done when the host continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.calls.collectives import POINT_TO_POINT
from stepscope.analysis.graph.launch_queue import find_launch_queue
from stepscope.analysis.graph.work import read_work
from stepscope.analysis.host.activity import host_activity
from stepscope.analysis.host.causes import BLOCKING, HostCause
from stepscope.analysis.host.events import host_events
from stepscope.analysis.host.idle_gaps import OF_THE_HOST, cut, find_gaps
from stepscope.analysis.ranks.rank_arrivals import OF_LAUNCHES, OWN_HOST, QUEUED
from stepscope.analysis.selection.gpu_work import GpuWork, recorded_work
from stepscope.analysis.selection.names import events_named, is_call, times_of
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.derive.unrecorded_work import frees_when_idle
from stepscope.trace.model import Trace

COMPUTE, COPIES, HOST = "compute", "copies", "host"
LOCAL_CAUSES = (
    COMPUTE,
    COPIES,
    "input",
    HOST,
    "garbage_collection",
    "compilation",
    "synchronisation",
    "allocation",
    "pageable_copy",
    "annotated_phase",
    "profiler",
)
"""What local time is spent on. `host`: launching work, and Python outside operators."""

BESIDE = "beside_ns"
"""The column with what a rank gets done beside a collective."""

_OF_ONE_STREAM = 0.95
"""The least share of a device's computing that its compute stream has."""
_RESUMED_NS = 100_000
"""How long after a collective the work that waited for it begins at the latest."""

LONGEST_LAUNCH_NS = 20_000
"""How long after its launch work begins on an idle device, at the most."""
_NONE = -(2**62)
"""Stands for no time."""

_OF_IDLE = {
    **dict.fromkeys(("op_dispatch", "cpu_operators", "backward", "not_recorded", "python"), HOST),
    **{name: name for name in LOCAL_CAUSES},
}
_OF_CPU = {
    HostCause.CPU_OPERATOR: COMPUTE,
    HostCause.LAUNCH: COMPUTE,
    HostCause.DISPATCH: COMPUTE,
    HostCause.ANNOTATION: HOST,
    HostCause.BACKWARD: HOST,
    HostCause.PYTHON: HOST,
}


def local_time(trace: Trace, collectives: pl.DataFrame, work: GpuWork | None) -> pl.DataFrame:
    """Divides the local time before each collective of a rank.

    Args:
        collectives: Columns `calls.collectives.COLLECTIVES`, in order of start.
        work: The GPU work of the trace; None where the CPU trains.

    Returns:
        One row per collective, with a column `local_<cause>_ns` for each cause that occurs,
        `BESIDE`, and on a GPU those of `OF_LAUNCHES`, null where no launch is known.
    """
    if collectives.is_empty():
        return pl.DataFrame()
    start = collectives["start_ns"].to_numpy().astype(np.int64)
    end = start + collectives["dur_ns"].to_numpy().astype(np.int64)
    if work is None:
        first = trace.steps["start_ns"].min()
        own = _of_cpu(trace, collectives)
        working = [own[COMPUTE]] if COMPUTE in own else []
    else:
        device = collectives["device"].mode().min()
        windows = work.device_steps if len(work.device_steps) else work.windows
        first = windows.filter(pl.col("device") == device)["start_ns"].min()
        own = _of_device(trace, work, device)
        working = [own[COMPUTE], own[COPIES]]
    begin = np.concatenate(([start[0]], np.maximum.accumulate(end)[:-1]))
    begin[0] = min(int(start[0]), first) if isinstance(first, int) else int(start[0])
    spent = {name: intervals.covered(own[name], begin, start) for name in own}
    spent = {f"local_{name}_ns": values for name, values in spent.items() if values.any()}
    if working:
        # The causes are disjoint.
        spent[BESIDE] = sum(
            (intervals.covered(one, start, end) for one in working), np.zeros_like(start)
        )
    found = pl.DataFrame(spent)
    return found if work is None else found.with_columns(*_of_launches(trace, work, collectives))


def _of_launches(trace: Trace, work: GpuWork, collectives: pl.DataFrame) -> list[pl.Series]:
    """`OWN_HOST` and `QUEUED` of each collective."""
    launches = collectives.select("event", "start_ns").join(
        work.table.select("event", "launch"), on="event", how="left", maintain_order="left"
    )
    is_known = launches["launch"].is_not_null()
    start = launches["start_ns"].to_numpy().astype(np.int64)
    calls = trace.columns("start_ns", "lane_id", "dur_ns")
    called = start.copy()
    called[is_known.to_numpy()] = calls["start_ns"].gather(launches["launch"].drop_nulls())
    waits = blocked(trace)
    own = called - intervals.covered_before(waits, called)
    first = int(own[is_known.to_numpy()].min()) if is_known.any() else 0
    found = {OWN_HOST: own - first, QUEUED: start - called}
    done = _of_stream(trace, work, collectives, called, waits)
    if done is not None:
        found |= dict(zip(OF_LAUNCHES[2:], done, strict=True))
    return [
        pl.select(pl.when(is_known).then(pl.Series(values)))
        .to_series()
        .replace(_NONE, None)
        .alias(name)
        for name, values in found.items()
    ]


def _of_stream(
    trace: Trace,
    work: GpuWork,
    collectives: pl.DataFrame,
    called: Int64Array,
    blocked: Intervals,
) -> tuple[Int64Array, ...] | None:
    """When the compute stream had done what was launched before each collective.

    Returns:
        The moments on its own clock, its work up to them, how long before the collectives' starts
        they were, and the work's own time since the launches. `_NONE` where there is no work
        before a collective, or none since the launch. Then how long the stream had nothing to do,
        as it was not launched, and the host's waits for the work's own time. None where nothing is
        known of any collective.
    """
    device = collectives["device"].mode().min()
    own = work.table.filter(pl.col("device") == device, pl.col("kind") != "communication")
    computes = own.filter(pl.col("kind") == "compute")
    by_stream = computes.group_by("stream").agg(pl.col("dur_ns").sum()).sort("dur_ns", "stream")
    if by_stream.is_empty():
        return None
    stream, most_ns = by_stream.row(-1)
    if most_ns < _OF_ONE_STREAM * int(by_stream["dur_ns"].sum()):
        return None
    # A stream runs its work in the order of the launches.
    rows = own.filter(pl.col("stream") == stream).sort("start_ns", "end_ns")
    launch = rows["launch"]
    start, end = (rows[name].to_numpy().astype(np.int64) for name in ("start_ns", "end_ns"))
    launched = pl.select(
        pl.when(launch.is_not_null())
        .then(trace.columns("start_ns")["start_ns"].gather(launch.fill_null(0)))
        .fill_null(strategy="forward")
        .fill_null(pl.lit(int(called.min()) - 1))
        .cum_max()
    ).to_series()
    end = np.maximum.accumulate(end)
    before = np.concatenate((start[:1], end[:-1]))
    begun = collectives["start_ns"].to_numpy().astype(np.int64)
    over = begun + collectives["dur_ns"].to_numpy().astype(np.int64)
    ends = np.sort(over)
    # The last collective to end before each piece of work begins.
    last = ends[np.maximum(np.searchsorted(ends, start, side="right") - 1, 0)]
    waits = (last > before) & (last <= start) & (start - last <= _RESUMED_NS)
    # What is launched only after its end did not wait for it: its host held it up.
    waits &= launched.to_numpy() <= last
    begin = np.minimum(before, start)
    of_host = intervals.intersection(blocked, intervals.merge(begun, over))
    kept = np.where(waits, start - begin, intervals.covered(of_host, begin, start))
    clock = end - np.cumsum(kept)
    worked = np.cumsum(end - np.maximum(start, before))
    place = np.searchsorted(launched.to_numpy(), called, side="left") - 1
    has_work = place >= 0
    # A stage of a pipeline that begins with a receive waits for its work as much as for that.
    if not has_work.all() and (collectives["kind"] == POINT_TO_POINT).any():
        return None
    place = np.maximum(place, 0)
    calls = launched.to_numpy().astype(np.int64)
    least_ns = min(int((start - calls).min()), int((begun - called).min()), LONGEST_LAUNCH_NS)
    pieces = _Pieces(calls + max(0, least_ns), calls, worked, end)
    since = pieces.since_launch(called, place, blocked)
    own_device, ready = clock[place] - clock[0], begun - end[place]
    unlaunched = np.cumsum(np.where(calls > before, start - begin - kept, 0))
    found = (own_device, worked[place], ready, since, unlaunched[place])
    of_work = (np.where(has_work, one, _NONE) for one in found)
    return (*of_work, pieces.awaited(called, blocked))


@dataclass(frozen=True)
class _Pieces:
    """The work of a stream, in order.

    Attributes:
        soonest: When each piece can have begun at the soonest after its launch.
        launched: When each was launched, ascending.
        worked: How long the stream had worked at the end of each.
        end: When each ended, ascending.
    """

    soonest: Int64Array
    launched: Int64Array
    worked: Int64Array
    end: Int64Array

    def since_launch(self, called: Int64Array, place: Int64Array, blocked: Intervals) -> Int64Array:
        """The work's own time since the launch of each collective, `_NONE` where there is none.

        Args:
            called: When each collective was launched.
            place: The last piece of work launched before each collective.
            blocked: When the host waited for the GPU.
        """
        begin = np.concatenate((self.launched[:1], called[:-1]))
        ends = np.concatenate((self.launched[:1], blocked.ends))
        waited = np.searchsorted(blocked.ends, called, side="right")
        begin = np.maximum(begin, np.maximum.accumulate(ends)[waited])
        done = self._done(begin, place)
        found: Int64Array = np.where(done > _NONE, done - called, _NONE)
        return found

    def awaited(self, called: Int64Array, blocked: Intervals) -> Int64Array:
        """The waits of the host for the work's own time, up to the launch of each collective."""
        if not len(blocked.ends):
            return np.zeros_like(called)
        calls = np.concatenate((self.launched[:1], np.sort(called)))
        last = calls[np.searchsorted(calls[1:], blocked.starts, side="right")]
        begin = np.maximum(last, np.concatenate((self.launched[:1], blocked.ends[:-1])))
        # A call that waits may have launched itself what it waits for.
        place = np.searchsorted(self.launched, blocked.starts, side="right") - 1
        is_done = (place >= 0) & (self.end[np.maximum(place, 0)] <= blocked.ends)
        done = self._done(begin, np.maximum(place, 0))
        least = np.clip(done - blocked.starts, 0, blocked.ends - blocked.starts)
        so_far = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.where(is_done, least, 0))))
        found: Int64Array = so_far[np.searchsorted(blocked.ends, called, side="right")]
        return found

    def _done(self, begin: Int64Array, place: Int64Array) -> Int64Array:
        """When the pieces launched since moments can have been done, up to places; or `_NONE`."""
        first = np.searchsorted(self.launched, begin, side="left")
        # Pieces that have the stream to themselves from their launch on, and all after them.
        held = self.soonest - np.concatenate((np.zeros(1, np.int64), self.worked[:-1]))
        held = np.append(held, _NONE)
        pairs = np.column_stack((np.minimum(first, place), place + 1)).ravel()
        latest = np.maximum.reduceat(held, pairs)[::2]
        found: Int64Array = np.where(first <= place, latest + self.worked[place], _NONE)
        return found


@memoized
def blocked(trace: Trace) -> Intervals:
    """When threads waited for the GPU: the main one, and those that launch collectives.

    In calls that free memory, until the last work ended.
    """
    work = recorded_work(trace)
    launch = work.filter(pl.col("kind") == "communication")["launch"].drop_nulls()
    lanes = set(trace.columns("lane_id")["lane_id"].gather(launch).unique().to_list())
    if trace.main_lane is not None:
        lanes.add(trace.main_lane)
    events = host_events(trace, tuple(sorted(lanes)))
    found = intervals.empty()
    for lane in lanes:
        claims = events.claims(lane)
        for cause in BLOCKING:
            found = intervals.union(found, claims[cause])
    queue = find_launch_queue(trace, read_work(trace, None))
    mine = np.isin(queue.wait_lane, list(lanes))
    of_queue = intervals.merge(queue.wait_start_ns[mine], queue.wait_end_ns[mine])
    frees = events_named(trace, is_call() & frees_when_idle(), tuple(lanes))
    start, end = times_of(trace, frees)
    ends = np.sort(np.append(work["end_ns"].to_numpy(), np.iinfo(np.int64).min))
    done = ends[np.searchsorted(ends, end, side="right") - 1]
    of_frees = intervals.merge(start, np.maximum(start, done))
    return intervals.union(intervals.union(found, of_queue), of_frees)


def _of_device(trace: Trace, work: GpuWork, device: object) -> dict[str, Intervals]:
    own = work.table.filter(pl.col("device") == device)

    def busy(kind: str) -> Intervals:
        rows = own.filter(pl.col("kind") == kind)
        return intervals.merge(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())

    compute = intervals.union(busy("compute"), busy("memset"))
    segments = cut(trace, find_gaps(trace, work), host_activity(trace, work.table))
    named = (
        pl.col("cause")
        .cast(pl.String)
        .replace_strict(_OF_IDLE, default=None, return_dtype=pl.String)
    )
    segments = segments.filter(pl.col("device") == device).with_columns(name=named)
    found = {COMPUTE: compute, COPIES: intervals.difference(busy("memcpy"), compute)}
    of_idle = segments.drop_nulls("name").partition_by("name", as_dict=True)
    return found | {
        str(name): intervals.merge(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        for (name,), rows in of_idle.items()
    }


def _of_cpu(trace: Trace, collectives: pl.DataFrame) -> Mapping[str, Intervals]:
    """What the main thread did, by cause; nothing where no thread is known to be it."""
    lanes = trace.steps["lane_id"][:1].to_list()
    if not lanes:
        return {}
    lane = int(lanes[0])
    claims = host_events(trace, (lane,)).claims(lane)
    first = int(trace.steps["start_ns"].to_numpy()[0])
    last = int((collectives["start_ns"] + collectives["dur_ns"]).to_numpy().max())
    claimed = intervals.empty()
    for own in claims:
        claimed = intervals.union(claimed, own)
    claims = [*claims, intervals.complement(claimed, first, max(first, last))]
    found: dict[str, Intervals] = {}
    for cause, own in zip(HostCause, claims, strict=True):
        name = _OF_CPU.get(cause, OF_THE_HOST[cause])
        if name in LOCAL_CAUSES and len(own):
            found[name] = intervals.union(found.get(name, intervals.empty()), own)
    return found
