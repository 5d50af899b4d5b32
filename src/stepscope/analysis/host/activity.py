"""What the threads that feed a GPU did at each moment, as far as it can keep the GPU waiting.

A moment of a thread belongs to the first of these that it lies in:

1. phase: an annotation named as saving a checkpoint, evaluation, validation or logging;
2. input: waiting for a batch (DataLoader, DataPipe, `stepscope.data_wait`);
3. synchronisation: a call that waits for the device, such as cudaStreamSynchronize, and copies to
   the host that hold it up (to pageable memory, or by a call that is not asynchronous);
4. allocation: cudaMalloc, cudaFree and their kin;
5. pageable_copy: copying to the device from pageable memory, or by a call that is not
   asynchronous, with the synchronisation that the same operator makes after it;
6. garbage_collector: Python's, where it was recorded;
7. dispatch: any other operator or call;
8. annotation: another annotation, provided that nothing is launched in it (one around the whole
   step explains nothing);
9. python: none of these.

A thread in state 9 may wait for another one, as the main thread waits for autograd's: then what
the other thread does counts, the main thread first, then those that launched most.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.host.input_waits import is_input_wait
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.arrays.ordering import distinct_groups
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category


class State(IntEnum):
    """What a thread does, in order of precedence."""

    PHASE = 0
    INPUT = 1
    SYNCHRONISATION = 2
    ALLOCATION = 3
    PAGEABLE_COPY = 4
    GARBAGE_COLLECTOR = 5
    DISPATCH = 6
    ANNOTATION = 7
    PYTHON = 8


BLOCKING = (State.SYNCHRONISATION, State.PAGEABLE_COPY)
"""States after which the device has nothing left to do."""

_PHASES = (
    r"(?i)\b(checkpoint(ing)?|save|evaluat\w*|eval|validat\w*|log(ging)?|metrics)\b"
    r"|(save|load|write)_?(checkpoint|model|state)|checkpoint_?(save|write)"
)
_GARBAGE_COLLECTOR = "Python GC"
_NOT_YET = -1


@dataclass(frozen=True)
class Activity:
    """What one launching thread did, or waited for.

    Attributes:
        starts: Starts of stretches, sorted and disjoint; what lies between them is `PYTHON`.
        ends: Their ends.
        states: The `State` of each.
        lanes: The thread that did it.
    """

    starts: Int64Array
    ends: Int64Array
    states: Int64Array
    lanes: Int64Array


@dataclass(frozen=True)
class HostActivity:
    """The activity of every thread that launched GPU work.

    Attributes:
        by_lane: Activity of each launching thread.
        outermost: For each thread and state the events that make it up and lie in no other of the
            same state: event number, start; sorted by start.
    """

    by_lane: dict[int, Activity]
    outermost: dict[tuple[int, int], tuple[Int64Array, Int64Array]]

    def event_at(self, lane: Int64Array, state: Int64Array, times: Int64Array) -> Int64Array:
        """For each moment the outermost event of that state on that thread; -1: none."""
        found = np.full(len(times), -1, np.int64)
        for (one_lane, one_state), (events, starts) in self.outermost.items():
            mine = np.nonzero((lane == one_lane) & (state == one_state))[0]
            if len(mine):
                place = np.searchsorted(starts, times[mine], side="right") - 1
                found[mine] = np.where(place >= 0, events[np.maximum(place, 0)], -1)
        return found


def host_activity(trace: Trace, work: pl.DataFrame) -> HostActivity:
    """Find out what the threads did that launched this GPU work.

    Args:
        trace: The trace.
        work: GPU work with launch, group and name_id (see `gpu_work`).
    """
    launches = work["launch"].drop_nulls().unique().sort().to_numpy()
    rows = _rows(trace, work, launches)
    counts = rows.filter(pl.col("is_launch")).group_by("lane_id").len().sort("len", descending=True)
    order = [int(lane) for lane in counts["lane_id"]]
    steps = trace.steps
    if len(steps):
        main = int(steps["lane_id"][0])
        order = [main, *(lane for lane in order if lane != main)]
    rows = rows.filter(pl.col("state") >= 0)
    lanes, state_of, event_of = (rows[name].to_numpy() for name in ("lane_id", "state", "event"))
    start_of, end_of = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    sets: dict[int, list[Intervals]] = {}
    outermost: dict[tuple[int, int], tuple[Int64Array, Int64Array]] = {}
    for lane in order:
        mine = np.nonzero(lanes == lane)[0]
        mine = mine[np.argsort(start_of[mine], kind="stable")]
        states = state_of[mine]
        by_state = {state: mine[states == state] for state in distinct_groups(states)}
        sets[lane] = _claims(by_state, start_of, end_of)
        for state, part in by_state.items():
            starts, ends = start_of[part], end_of[part]
            reach = np.maximum.accumulate(ends)
            is_outer = np.concatenate(([True], ends[1:] > reach[:-1]))
            outermost[lane, state] = (event_of[part[is_outer]], starts[is_outer])
    return HostActivity({lane: _with_others(lane, order, sets) for lane in order}, outermost)


def _rows(trace: Trace, work: pl.DataFrame, launches: Int64Array) -> pl.DataFrame:
    """Events of the launching threads that have a state of their own, with it."""
    names = trace.names.collect()
    by_name = np.full(len(names), _NOT_YET, np.int64)
    for named, which in _states_of_names(names).items():
        by_name[which.to_numpy() & (by_name == _NOT_YET)] = named
    events = trace.columns("name_id", "lane_id", "start_ns", "dur_ns")
    name_id, lane = events["name_id"].to_numpy(), events["lane_id"].to_numpy()
    feeds = np.zeros(trace.lanes.height, np.bool_)
    feeds[lane[launches]] = True
    feeds[trace.steps["lane_id"].to_numpy()] = True
    event = np.nonzero((by_name[name_id] >= 0) & feeds[lane])[0]
    state = by_name[name_id[event]]
    marked = np.zeros(len(events), np.bool_)
    marked[launches] = True
    is_launch = marked[event]
    # An operator inside an operator adds no time; only the launches among them are asked for.
    parent = trace.derived.select("parent").collect()["parent"].gather(event).fill_null(-1)
    above = parent.to_numpy()
    outer_state = np.where(above >= 0, by_name[name_id[above]], _NOT_YET)
    is_inner = (state == State.DISPATCH) & (outer_state == State.DISPATCH)
    kept = ~is_inner | is_launch
    event, state, is_launch = event[kept], state[kept], is_launch[kept]
    rows: pl.DataFrame = events[event].select(
        "name_id",
        "lane_id",
        "start_ns",
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        event=pl.Series(event),
    )
    all_ops = trace.derived.select("op").collect()["op"]
    op = all_ops.gather(event).fill_null(-1).to_numpy()
    waits, pageable = blocking_copies(names, work, rows)
    state[_among(event, waits) & (state == State.DISPATCH)] = State.SYNCHRONISATION
    state[_among(event, pageable) & (state >= State.SYNCHRONISATION)] = State.PAGEABLE_COPY
    copying = np.unique(all_ops.gather(pageable).fill_null(-1).to_numpy())
    copying = copying[copying >= 0]
    is_wait = state == State.SYNCHRONISATION
    state[is_wait & _among(op, copying)] = State.PAGEABLE_COPY
    starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    state = _only_without_launches(state, rows["lane_id"].to_numpy(), starts, ends, is_launch)
    return rows.with_columns(state=pl.Series(state), is_launch=pl.Series(is_launch))


def _states_of_names(names: pl.DataFrame) -> dict[State, pl.Series]:
    """For each state whether a name stands for it."""
    name, group, category = names["name"], names["group"], names["category"].cast(pl.String)
    is_annotation = category.is_in([Category.USER_ANNOTATION.value, Category.OTHER.value])
    is_call = category.is_in([Category.RUNTIME.value, Category.DRIVER.value])
    no_group = group.is_null()
    is_step = (group == "profiler_step").fill_null(value=False)
    none = {
        State.PHASE: is_annotation & no_group & name.str.contains(_PHASES),
        State.INPUT: names.select(is_input_wait()).to_series(),
        State.SYNCHRONISATION: is_call & (group == "sync"),
        State.ALLOCATION: is_call & (group == "allocation"),
        State.GARBAGE_COLLECTOR: (category == Category.PYTHON_FUNCTION.value)
        & (name == _GARBAGE_COLLECTOR),
        State.DISPATCH: (is_call | (category == Category.CPU_OP.value)) & ~is_step,
        State.ANNOTATION: is_annotation & no_group,
    }
    return {state: which.fill_null(value=False) for state, which in none.items()}


def blocking_copies(
    names: pl.DataFrame, work: pl.DataFrame, rows: pl.DataFrame
) -> tuple[Int64Array, Int64Array]:
    """Calls of copies that hold the host up: those to the host, and those to the device.

    Args:
        names: The table of names.
        work: GPU work with launch, group and name_id.
        rows: Calls of the runtime with event and name_id.

    Returns:
        Sorted numbers of the calling events, of copies to the host and of copies to the device.
    """
    copies = work.filter(
        pl.col("group").is_in(["host_to_device", "device_to_host"]), pl.col("launch").is_not_null()
    ).select("launch", "group", "name_id")
    names = names.select("name_id", "name", pl.col("group").alias("name_group"))
    # A call that is not asynchronous returns when the copy is done, whatever the memory.
    held = names.filter(
        (pl.col("name_group") == "copy_call")
        & pl.col("name").str.contains("(?i)memcpy")
        & ~pl.col("name").str.contains("(?i)async")
    )["name_id"]
    calls = rows.filter(pl.col("name_id").is_in(held.implode()))["event"]
    holding = (
        copies.join(names, on="name_id")
        .filter(pl.col("name").str.contains("Pageable") | pl.col("launch").is_in(calls.implode()))
        .unique("launch")
    )
    down = holding.filter(pl.col("group") == "device_to_host")["launch"].to_numpy()
    up = holding.filter(pl.col("group") == "host_to_device")["launch"].to_numpy()
    return np.sort(down), np.sort(up)


def _among(values: Int64Array, wanted: Int64Array) -> npt.NDArray[np.bool_]:
    """Whether each value is one of the wanted ones, which are sorted."""
    if not len(wanted):
        return np.zeros(len(values), np.bool_)
    place = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
    found: npt.NDArray[np.bool_] = wanted[place] == values
    return found


def _only_without_launches(
    state: Int64Array,
    lane: Int64Array,
    starts: Int64Array,
    ends: Int64Array,
    is_launch: npt.NDArray[np.bool_],
) -> Int64Array:
    """Take the state from annotations that something is launched in."""
    state = state.copy()
    for one in np.unique(lane[state == State.ANNOTATION]):
        marks = np.nonzero((state == State.ANNOTATION) & (lane == one))[0]
        launched = np.sort(starts[is_launch & (lane == one)])
        inside = np.searchsorted(launched, ends[marks]) - np.searchsorted(launched, starts[marks])
        state[marks[inside > 0]] = _NOT_YET
    return state


def _claims(
    by_state: dict[int, Int64Array], starts: Int64Array, ends: Int64Array
) -> list[Intervals]:
    """The moments of each state: those of its events that no state before it has.

    Args:
        by_state: Rows of each state, in order of their starts.
        starts: Starts of all rows.
        ends: Their ends.
    """
    claims = []
    claimed = intervals.empty()
    for one in range(State.PYTHON):
        mine = by_state.get(one, np.zeros(0, np.int64))
        own = intervals.merge(starts[mine], ends[mine])
        claims.append(intervals.difference(own, claimed))
        claimed = intervals.union(claimed, own)
    return claims


def _with_others(lane: int, order: list[int], sets: dict[int, list[Intervals]]) -> Activity:
    """What a thread does, and where it does nothing, what the others do."""
    starts, ends, states, lanes = [], [], [], []
    claimed = intervals.empty()
    for other in [lane, *(one for one in order if one != lane)]:
        active = intervals.empty()
        for state, own in enumerate(sets[other]):
            left = intervals.difference(own, claimed)
            starts.append(left.starts)
            ends.append(left.ends)
            states.append(np.full(len(left), state, np.int64))
            lanes.append(np.full(len(left), other, np.int64))
            active = intervals.union(active, own)
        claimed = intervals.union(claimed, active)
    start = np.concatenate(starts)
    by_time = np.argsort(start, kind="stable")
    return Activity(
        start[by_time],
        np.concatenate(ends)[by_time],
        np.concatenate(states)[by_time],
        np.concatenate(lanes)[by_time],
    )
