"""The GPU work of a graph and the calls that launched it; its steps, main thread and window."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.graph.kinds import NodeKind
from stepscope.analysis.graph.threads import CLOCK_SKEW_NS
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.events import HostEvents
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.errors import UsageError
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.arrays.ordering import by_group_and_time, distinct_groups
from stepscope.trace.model import Trace
from stepscope.trace.problems import counted
from stepscope.trace.schema import Category, Kind

_KINDS = {
    Kind.COMMUNICATION: NodeKind.COMMUNICATION,
    Kind.MEMCPY: NodeKind.MEMCPY,
    Kind.MEMSET: NodeKind.MEMSET,
}
_KIND_CODES = np.array([_KINDS.get(kind, NodeKind.COMPUTE) for kind in Kind], np.int8)
_FIRST = np.iinfo(np.int64).min
_LARGEST_SKEW_NS = 20_000
_ISSUE_NS = 10_000  # what a copy that blocks needs to be handed over, at most


@dataclass(frozen=True)
class StepWork:
    """GPU work of the steps of a graph, sorted by stream, then time.

    Attributes:
        step: Index of the step that launched it.
        call: The launching call; -1: none.
        call_lane: Its thread; -1: none.
        call_start_ns: Its start; for work without one that of the work before it on its stream.
        issue_ns: When the work left the host; its own start for work without a call.
        earlier_end_ns: For the first work of each stream the end of the last work before it that is
            not of these steps; for all other work, and where there is none, the earliest time.
        unlinked: Number of events without a launching call.
        skewed: Number of events whose call is ignored, because it began too late.
        skew_ns: By how much it began too late: the median over these; 0: there are none.
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
    skew_ns: int

    def __len__(self) -> int:
        return len(self.event)

    def streams(self) -> list[tuple[int, int]]:
        """First row, and the row after the last, of each stream."""
        change = np.nonzero(self.lane[1:] != self.lane[:-1])[0] + 1
        edges = [0, *change.tolist(), len(self)]
        return list(pairwise(edges)) if len(self) else []


def read_work(trace: Trace, steps: pl.Series | None) -> StepWork:
    """Read GPU work and its launching calls.

    Args:
        steps: Numbers of the steps, in order; None: the whole trace as one step.
    """
    everything = recorded_work(trace)[
        ["event", "lane_id", "device", "start_ns", "end_ns", "step", "launch", "kind"]
    ]
    if steps is None:
        found = everything.with_columns(index=pl.lit(0, pl.Int64))
    else:
        place = pl.Series(range(len(steps)), dtype=pl.Int64)
        index = everything["step"].replace_strict(steps.cast(pl.Int32), place, default=None)
        found = everything.with_columns(index=index).filter(pl.col("index").is_not_null())
    calls = trace.columns("lane_id", "start_ns", "dur_ns")
    call = filled(found["launch"], -1).astype(np.int64)
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
    # Signed before the choice: numpy 2.5 refuses to put -1 among unsigned numbers.
    call_lane = np.where(linked, calls["lane_id"].to_numpy()[call].astype(np.int64), -1)
    call_end = np.where(linked, call_start + calls["dur_ns"].to_numpy()[call], 0)
    skewed = linked & (start < call_start - _LARGEST_SKEW_NS)
    unlinked = int((~linked).sum())
    linked &= ~skewed
    call, call_lane = np.where(linked, call, -1), np.where(linked, call_lane, -1)
    lane = rows["lane_id"].to_numpy().astype(np.int64)
    first_start = _first_of_call(call, start)
    is_over = rows["end_ns"].to_numpy() <= call_end + CLOCK_SKEW_NS
    blocks = linked & (rows["kind"] == "memcpy").to_numpy() & is_over
    limit = np.where(blocks, np.minimum(call_start + _ISSUE_NS, call_end), call_end)
    issue = np.where(linked, np.minimum(limit, first_start), start)
    return StepWork(
        event=rows["event"].to_numpy().astype(np.int64),
        start_ns=start,
        end_ns=rows["end_ns"].to_numpy(),
        lane=lane,
        device=filled(rows["device"], -1).astype(np.int64),
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
        skew_ns=int(np.median((call_start - start)[skewed])) if skewed.any() else 0,
    )


def _earlier_ends(everything: pl.DataFrame, lane: Int64Array, start: Int64Array) -> Int64Array:
    """For the first row of each stream the end of what ran on it before; else `_FIRST`.

    Args:
        everything: All GPU work, with its stream (`lane_id`), start and end.
        lane: The stream of each row, in order.
    """
    ends = np.full(len(lane), _FIRST)
    if not len(lane) or everything.is_empty():
        return ends
    first = np.flatnonzero(np.concatenate(([True], lane[1:] != lane[:-1])))
    lanes = everything["lane_id"].to_numpy()
    # When the rows of each stream begin: nothing is earlier on one that has none.
    begin = np.full(int(max(lane.max(), lanes.max())) + 1, _FIRST)
    begin[lane[first]] = start[first]
    earlier = np.flatnonzero(everything["start_ns"].to_numpy() < begin[lanes])
    if not len(earlier):
        return ends
    latest = np.full(len(begin), _FIRST)
    np.maximum.at(latest, lanes[earlier], everything["end_ns"].to_numpy()[earlier])
    ends[first] = latest[lane[first]]
    return ends


def _first_of_call(call: Int64Array, start: Int64Array) -> Int64Array:
    """For each row the earliest start of what its call launched (a graph launches much)."""
    earliest = np.full(int(call.max(initial=0)) + 2, np.iinfo(np.int64).max)  # the last: no call
    np.minimum.at(earliest, call, start)
    return np.where(call >= 0, earliest[call], start)


def _fill_from_before(
    values: Int64Array, valid: BoolArray, lane: Int64Array, otherwise: Int64Array
) -> Int64Array:
    """Each row's value, or that of the last valid row before it on its lane."""
    rows = np.arange(len(values))
    last = np.maximum.accumulate(np.where(valid, rows, -1)) if len(values) else rows
    known = last >= 0
    same = known & (lane[np.maximum(last, 0)] == lane)
    return np.where(same, values[np.maximum(last, 0)], otherwise)


NO_THREAD = -1
"""The main lane of a file that holds nothing of the host."""
_WITHOUT_TIME = (
    "no_time",
    "no_duration",
    "negative_duration",
    "overflowed_duration",
    "phase_not_kept",
    "relative_clock",
)


def choose_steps(
    trace: Trace, steps: tuple[int, ...] | None
) -> tuple[pl.DataFrame, tuple[int, int]]:
    """The host steps in question, and the time that they span."""
    host = trace.steps
    if steps is None:
        chosen = host.filter(pl.col("step").is_in(list(steady_steps(trace).steps)))
    else:
        missing = sorted(set(steps) - set(host["step"].to_list()))
        if missing:
            raise UsageError(
                f"{trace.path}: no step {missing[0]}; it holds"
                f" {', '.join(map(str, host['step'].to_list())) or 'none'}"
            )
        chosen = host.filter(pl.col("step").is_in(steps))
        if (chosen["start_ns"][1:] != chosen["end_ns"][:-1]).any():
            raise UsageError(f"{trace.path}: a replay needs steps that follow one another")
    if len(chosen):
        return chosen, (int(chosen["start_ns"][0]), int(chosen["end_ns"][-1]))
    extent = trace.events.select(
        first=pl.col("start_ns").min(),
        last=(pl.col("start_ns") + pl.col("dur_ns")).max(),
        longest=pl.col("dur_ns").max(),
    ).collect()
    if extent["first"][0] is None:
        raise UsageError(f"{trace.path}: it holds no events{_passed_over(trace)}")
    if extent["longest"][0] <= 0:
        raise UsageError(f"{trace.path}: none of its events has a duration{_passed_over(trace)}")
    return chosen, (int(extent["first"][0]), int(extent["last"][0]))


def _passed_over(trace: Trace) -> str:
    """What was done to events for want of a time, to follow what the trace lacks."""
    wrong = trace.all_problems.filter(pl.col("problem").is_in(_WITHOUT_TIME))
    problems = [counted(message, count) for count, message in wrong["count", "message"].iter_rows()]
    return f" ({'; '.join(problems)})" if problems else ""


def main_lane_of(trace: Trace, work: StepWork) -> int:
    """The lane of the main thread; `NO_THREAD` in a file that holds only GPU work.

    Raises:
        UsageError: The file holds neither operators nor calls nor GPU work.
    """
    active = trace.events.filter(
        pl.col("category").is_in([Category.CPU_OP.value, Category.RUNTIME.value])
    )
    if trace.main_lane is not None and (len(work) or len(active.head(1).collect())):
        return trace.main_lane
    if len(work):
        return NO_THREAD
    if len(trace.steps):
        raise UsageError(
            f"{trace.path}: holds the start of step {trace.steps['step'][0]}, and no operators: the"
            " loop ended there. A handler that writes each cycle to the same file replaces the last"
            " whole one: set `repeat` in the schedule, or put `p.step_num` into the name"
        )
    raise UsageError(
        f"{trace.path}: holds no operators and no calls of a device's runtime, which torch's"
        " profiler records; `stepscope view` and `stepscope query` show any trace"
    )


def device_start(trace: Trace, chosen: pl.DataFrame, work: StepWork) -> int | None:
    """When the devices were done with what came before these steps; None without GPU work.

    Without steps it is when the first GPU work begins.
    """
    if not len(work):
        return None
    if not len(chosen):
        return int(work.start_ns.min())
    first = trace.device_steps.filter(
        pl.col("step") == chosen["step"][0],
        pl.col("device").is_in(distinct_groups(work.device)),
    )
    return int(first["start_ns"].max()) if len(first) else None  # type: ignore[arg-type]


def whole_window(host: HostEvents, work: StepWork, window: tuple[int, int]) -> tuple[int, int]:
    """Without steps: from the first GPU work (else operator, call or wait for input) to the last.

    Args:
        window: What to return if there is nothing of these.
    """
    known = host.table.filter(pl.col("is_work") | (pl.col("cause") == int(HostCause.INPUT)))
    starts, ends = known["start_ns"].to_numpy(), known["end_ns"].to_numpy()
    if len(work):
        return int(work.start_ns.min()), int(np.concatenate((work.end_ns, ends)).max())
    return (int(starts.min()), int(ends.max())) if len(starts) else window
