"""The steady steps of a trace, and how long one takes: the one step time that every answer uses.

Definitions
    A step lasts as long as its device step; of several devices, the mean of theirs. What a one-off
    call kept the devices idle (`calls.one_off`) is no part of the steps that count. If the steps
    that count have no GPU work, or the file is cut off and may lack work of any step, it lasts as
    long as its host step; what the last step of a file takes at its end, after
    its last operator and call, beyond what any other step does, is the end of the loop and not
    counted.

States
    complete       An ordinary step.
    empty          Nothing ran in it. Torch leaves such a step when the profiler stops.
    cut off        A step whose end a file that is cut off does not have.
    work lost      A step whose GPU work was not recorded, or not all of it; see
                   `selection.lost_work`.
    start unknown  A step of which nobody knows when the device began with it, because earlier work
                   was not recorded: the first one (see `trace.derive.steps`), or one that follows a
                   step whose last launch is lost.
    start-up       The steps at the beginning that take more than twice the median of the others.
    stall          The one later step that takes more than three times the median; see
                   `selection.outlier_steps` for both.
    apart          An ordinary step that does not follow the others: see below.
    part of round  One of the first ordinary steps, where epochs begin again and again, or batches
                   come several at a time, and all ordinary steps are no whole number of such
                   rounds; or where batches were made before. See `selection.outlier_steps`.

The steady steps are the complete ones; where others lie between them, the longest run of steps
that follow one another. Steps that a scope asks for count whatever they are.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import Enum

import numpy as np
import polars as pl

from stepscope.analysis.calls.one_off import one_off_calls
from stepscope.analysis.host.causes import is_input_wait, makes_batch
from stepscope.analysis.host.idle_gaps import idle_segments
from stepscope.analysis.host.waits import epoch_starts
from stepscope.analysis.selection.gpu_work import in_steps, work_on_devices
from stepscope.analysis.selection.lost_work import lost_work
from stepscope.analysis.selection.names import events_named, times_of
from stepscope.analysis.selection.outlier_steps import (
    LEAST_STEPS,
    START_UP_FACTOR,
    is_only_first,
    rounds_of_batches,
    rounds_of_work,
    settling_steps,
    single_stall,
    slow_first_steps,
)
from stepscope.analysis.selection.partition import ONE_OFF
from stepscope.analysis.selection.scope import Scope, memoized
from stepscope.run.figures import duration, first_of, significant
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import are_among
from stepscope.trace.categories import HOST_CALLS, is_one_of
from stepscope.trace.derive.steps import step_at
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

_NOTABLE_TAIL_NS = 1_000_000


class StepState(str, Enum):
    """What a step is; see the module."""

    COMPLETE = "complete"
    EMPTY = "empty"
    CUT_OFF = "cut off"
    WORK_LOST = "work lost"
    START_UNKNOWN = "start unknown"
    START_UP = "start-up"
    STALL = "stall"
    APART = "apart"
    PART_OF_ROUND = "part of round"


_STATES = tuple(StepState)
_COMPLETE = _STATES.index(StepState.COMPLETE)


@dataclass(frozen=True)
class ClassifiedStep:
    """One step of a trace.

    Attributes:
        input_ns: How long the main thread waited for its input in it.
    """

    step: int
    state: StepState
    dur_ns: int
    input_ns: int


@dataclass(frozen=True)
class SteadySteps:
    """The steps that an answer about the steady state covers.

    Attributes:
        steps: Their numbers, in order; empty for a trace without steps.
        step_ns: Mean duration; for a trace without steps the time of all its GPU work.
        tail_ns: What was taken off the end of the file's last step, as the end of the loop.
        one_off_ns: What was taken off the steps that count, together, because one-off calls kept
            the devices idle.
        classified: Every step of the trace, in order.
    """

    steps: tuple[int, ...]
    step_ns: int
    median_ns: int
    is_of_devices: bool
    tail_ns: int
    classified: tuple[ClassifiedStep, ...]
    one_off_ns: int = 0

    def of_state(self, *states: StepState) -> tuple[ClassifiedStep, ...]:
        """The steps of some states."""
        return tuple(one for one in self.classified if one.state in states)

    def _how_long(self, one: ClassifiedStep) -> str:
        """How many times the others it took: if no more than these, then beside the waits."""
        times, beside = one.dur_ns / max(1, self.median_ns), ""
        complete = self.of_state(StepState.COMPLETE)
        if times < START_UP_FACTOR and complete:
            own_ns = one.dur_ns - one.input_ns
            others_ns = statistics.median(step.dur_ns - step.input_ns for step in complete)
            times, beside = own_ns / max(1, others_ns), f"{duration(own_ns)} beside its input, "
        if beside and significant(times) == "1":
            return f"{beside}as the others"
        return f"{beside}{significant(times)} times the others"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on why steps that are not empty do not count."""
        words = []
        for one in self.of_state(StepState.START_UP, StepState.STALL):
            words.append(
                f"step {one.step} took {duration(one.dur_ns)}, {self._how_long(one)} "
                f"({one.state.value}): not part of the steady step"
            )
            usual_ns = max((step.input_ns for step in self.of_state(StepState.COMPLETE)), default=0)
            if one.input_ns > max(2 * usual_ns, (one.dur_ns - self.median_ns) // 2):
                words.append(
                    f"step {one.step} waited {duration(one.input_ns)} for its input; whether such "
                    "waits come again, only a longer recording shows"
                )
        for state, why in _WHY.items():
            steps = [one.step for one in self.of_state(state)]
            if steps:
                which = f"{'steps' if len(steps) > 1 else 'step'} {first_of(steps, 8)}"
                words.append(f"not part of the steady step: {which} ({why})")
        if self.tail_ns:
            words.append(
                "after its last operator and call, the last step goes on for "
                f"{duration(self.tail_ns)} longer than any other: that is taken for the end of the "
                "loop, and left out"
            )
        if self.one_off_ns:
            words.append(
                f"one-off calls kept the GPU idle for {duration(self.one_off_ns)}: not part of the "
                "step"
            )
        return tuple(words)


_WITHOUT_WORKERS = "_SingleProcessDataLoaderIter"
_WITH_WORKERS = "_MultiProcessingDataLoaderIter|DataPipe"
_WHY = {
    StepState.CUT_OFF: "the file is cut off and does not show where it ends",
    StepState.WORK_LOST: "GPU work was not recorded",
    StepState.START_UNKNOWN: "earlier GPU work that was not recorded may have gone on into it",
    StepState.APART: "outside the longest run of ordinary steps",
    StepState.PART_OF_ROUND: "part of a round of batches or of an epoch, of which the others are "
    "whole ones",
}


@memoized
def steady_steps(trace: Trace, scope: Scope | None = None) -> SteadySteps:
    """Find the steady steps, or those that the scope asks for, and how long one takes.

    Args:
        scope: Steps that count whatever they are, and devices whose steps count; the choice of
            events has no influence.
    """
    asked = scope or Scope()
    host = trace.steps
    if host.is_empty():
        once_ns = int(_one_off_idle(trace, asked).sum())
        whole_ns = _whole_file(trace, asked) - once_ns
        return SteadySteps((), whole_ns, whole_ns, whole_ns > 0, 0, (), once_ns)
    numbers = host["step"].to_numpy()
    wanted = np.ones(len(host), np.bool_)
    if asked.steps is not None:
        wanted = np.isin(numbers, asked.steps)
    device = _device_durations(trace, asked, numbers[wanted])
    durations = _host_durations(trace) if device is None else device
    waits = _input_waits(trace, host)
    states = _states(trace, host, durations, waits, is_of_devices=device is not None)
    chosen = wanted if asked.steps is not None else states == _COMPLETE
    classified = tuple(
        ClassifiedStep(int(number), _STATES[state], int(duration), int(wait))
        for number, state, duration, wait in zip(numbers, states, durations, waits, strict=True)
    )
    if device is not None and not _have_work(trace, numbers[chosen]):
        # Only steps that do not count have GPU work: those that count last as long as on the host.
        device, durations = None, _host_durations(trace)
    once_ns = 0
    if device is not None:
        once = _one_off_idle(trace, asked)
        once_ns = int(once[chosen].sum())
        durations = durations - once
    return SteadySteps(
        steps=tuple(numbers[chosen].tolist()),
        step_ns=round(float(durations[chosen].mean())) if chosen.any() else 0,
        median_ns=round(float(np.median(durations[chosen]))) if chosen.any() else 0,
        is_of_devices=device is not None,
        tail_ns=loop_tail(trace) if device is None and chosen[-1] else 0,
        classified=classified,
        one_off_ns=once_ns,
    )


def _one_off_idle(trace: Trace, asked: Scope) -> Int64Array:
    """How long one-off calls kept the devices idle, their mean: per step, or in the whole file."""
    count = max(1, len(trace.steps))
    found = np.zeros(count, np.int64)
    if one_off_calls(trace).is_empty():
        return found
    idle = idle_segments(trace).filter(pl.col("cause") == ONE_OFF)
    rows = trace.device_steps["device", "start_ns", "end_ns"]
    if trace.steps.is_empty():
        work = work_on_devices(trace).group_by("device")
        rows = work.agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    if asked.devices is not None:
        rows = rows.filter(pl.col("device").is_in(list(asked.devices)))
    for (device,), steps in rows.partition_by("device", as_dict=True).items():
        mine = idle.filter(pl.col("device") == device)
        moments = intervals.merge(mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy())
        found += intervals.covered(
            moments, steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
        )
    return found // max(1, rows["device"].n_unique())


def steps_on_end(trace: Trace) -> tuple[int, ...]:
    """The longest run of steps that follow one another, whatever they are, but for empty ones."""
    host = trace.steps
    if host.is_empty():
        return ()
    run = _longest_run(host, ~host["is_empty"].to_numpy())
    steps: tuple[int, ...] = tuple(host["step"].to_numpy()[run].tolist())
    return steps


def tail_of(trace: Trace, steps: pl.DataFrame) -> int:
    """The end of the loop within some steps: `loop_tail` if the trace's last is among them."""
    if steps.is_empty() or trace.steps.is_empty():
        return 0
    return loop_tail(trace) if steps["step"][-1] == trace.steps["step"][-1] else 0


@memoized
def loop_tail(trace: Trace) -> int:
    """What the last step of the file takes at its end beyond what any other does.

    Where the loop ends within the window, the last annotation also covers what comes after the
    loop: workers that are shut down, the profiler that is stopped.
    """
    host = trace.steps.filter(~pl.col("is_empty"))
    if len(host) < LEAST_STEPS or host["step"][-1] != trace.steps["step"][-1]:
        return 0
    is_work = is_one_of((Category.CPU_OP, *HOST_CALLS))
    work = events_named(trace, is_work, (host["lane_id"][0],))
    work = work[~are_among(trace.steps["event"], trace.event_count)[work]]
    starts, ends = host["start_ns"].to_numpy(), host["end_ns"].to_numpy()
    begun, over = times_of(trace, work)
    index = step_at(host, begun)
    mine = index >= 0
    last = starts.copy()
    np.maximum.at(last, index[mine], over[mine])
    quiet = np.maximum(ends - last, 0)
    beyond = int(quiet[-1] - quiet[:-1].max())
    return beyond if beyond > _NOTABLE_TAIL_NS else 0


def _whole_file(trace: Trace, asked: Scope) -> int:
    """From the first GPU work to the last; of several devices the mean."""
    work = work_on_devices(trace)
    if asked.devices is not None:
        work = work.filter(pl.col("device").is_in(list(asked.devices)))
    spans = work.group_by("device").agg(span=pl.col("end_ns").max() - pl.col("start_ns").min())
    return int(spans["span"].sum()) // len(spans) if len(spans) else 0


def _device_durations(trace: Trace, asked: Scope, wanted: Int64Array) -> Int64Array | None:
    """Duration of each step on the devices; None where the steps in question have no GPU work.

    None also where some of it may be missing.
    """
    if trace.lacks_end or not _have_work(trace, wanted):
        return None
    rows = trace.device_steps
    if asked.devices is not None:
        rows = rows.filter(pl.col("device").is_in(list(asked.devices)))
    if rows.is_empty():
        return None
    lengths = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    per_device: Int64Array = lengths.reshape(rows["device"].n_unique(), len(trace.steps))
    mean: Int64Array = per_device.sum(axis=0) // len(per_device)
    return mean


def _device_idle(trace: Trace) -> Int64Array:
    """How long the devices have nothing to do in each step, their mean."""
    rows = trace.device_steps
    idle = np.zeros(len(trace.steps), np.int64)
    for (device,), work in work_on_devices(trace).partition_by("device", as_dict=True).items():
        mine = rows.filter(pl.col("device") == device)
        starts, ends = mine["start_ns"].to_numpy(), mine["end_ns"].to_numpy()
        busy = intervals.merge(work["start_ns"].to_numpy(), work["end_ns"].to_numpy())
        idle += ends - starts - intervals.covered(busy, starts, ends)
    return idle // max(1, rows["device"].n_unique())


def _have_work(trace: Trace, steps: Int64Array) -> bool:
    return bool(in_steps(work_on_devices(trace)["step"], Scope(steps=tuple(steps.tolist()))).any())


def _host_durations(trace: Trace) -> Int64Array:
    host = trace.steps
    durations = (host["end_ns"] - host["start_ns"]).to_numpy().copy()
    durations[-1] -= loop_tail(trace)
    return durations


def _input_waits(trace: Trace, host: pl.DataFrame) -> Int64Array:
    found = events_named(trace, is_input_wait(), (host["lane_id"][0],))
    waits = intervals.merge(*times_of(trace, found))
    return intervals.covered(waits, host["start_ns"].to_numpy(), host["end_ns"].to_numpy())


def _states(
    trace: Trace,
    host: pl.DataFrame,
    durations: Int64Array,
    waits: Int64Array,
    *,
    is_of_devices: bool,
) -> Int64Array:
    states = np.full(len(host), _COMPLETE, np.int64)
    states[~host["is_complete"].to_numpy()] = _STATES.index(StepState.CUT_OFF)
    states[host["is_empty"].to_numpy()] = _STATES.index(StepState.EMPTY)
    if not (states == _COMPLETE).any():
        states[states == _STATES.index(StepState.CUT_OFF)] = _COMPLETE
        return states
    if is_of_devices:
        _leave_out_unrecorded(trace, states)
    whole = _longest_run(host, states != _STATES.index(StepState.EMPTY))
    rows = np.nonzero(states == _COMPLETE)[0]
    first = slow_first_steps(durations[rows], waits[rows])
    if not first and is_of_devices and len(rows):
        # What the host waits while the devices have work makes no step longer.
        held_up = np.minimum(waits, _device_idle(trace))[rows]
        if is_only_first(held_up):
            first = slow_first_steps(durations[rows], held_up)
    states[rows[:first]] = _STATES.index(StepState.START_UP)
    rows = rows[first:]
    epoch, begins_epoch = _epochs(trace, host, whole)
    stall = single_stall(durations[rows], waits[rows])
    if stall is not None and not begins_epoch[rows[stall]]:
        states[rows[stall]] = _STATES.index(StepState.STALL)
    run = _longest_run(host, states == _COMPLETE)
    states[(states == _COMPLETE) & ~run] = _STATES.index(StepState.APART)
    later = whole & (states != _STATES.index(StepState.START_UP))
    length, ahead = (epoch, 0) if epoch else rounds_of_batches(durations[later], waits[later])
    if ahead and _makes_its_batches(trace, host):
        ahead = 0  # no batch is made before its step: the others' waits are longer by chance
    if length == 1 and not ahead:  # a slow first step may have waited as later rounds do
        length, _ = rounds_of_batches(durations[whole], waits[whole])
    rows = np.flatnonzero(run)
    if length == 1 and not ahead:
        # The host's part of a step may be an ordinary one where that of the devices is not.
        on_host, is_complete = _host_durations(trace), host["is_complete"].to_numpy()
        length = max(rounds_of_work(on_host[these & is_complete]) for these in (later, whole))
    if ahead:
        ahead = int((rows < np.flatnonzero(later)[ahead]).sum())
        if is_of_devices:
            on_host = _host_durations(trace)[rows[ahead:]]
            ahead += settling_steps(on_host, durations[rows[ahead:]])
    beyond = ahead + (len(rows) - ahead) % length
    if beyond < len(rows):
        states[rows[:beyond]] = _STATES.index(StepState.PART_OF_ROUND)
    return states


def _makes_its_batches(trace: Trace, host: pl.DataFrame) -> bool:
    """Whether the training's thread makes its batches itself: no loader has workers."""
    lane = (host["lane_id"][0],)
    loaders = pl.col("group") == "dataloader"
    own = loaders & pl.col("name").str.contains(_WITHOUT_WORKERS, literal=True)
    others = loaders & pl.col("name").str.contains(_WITH_WORKERS)
    makes_some = len(events_named(trace, own | makes_batch(), lane)) > 0
    return makes_some and not len(events_named(trace, others, lane))


def _epochs(trace: Trace, host: pl.DataFrame, whole: BoolArray) -> tuple[int, BoolArray]:
    """How many steps an epoch has, and which begin one; 0 and none if they do not come again."""
    begins = np.isin(host["step"].to_numpy(), epoch_starts(trace).steps) & whole
    distances = np.diff(np.flatnonzero(begins))
    if not len(distances) or (distances != distances[0]).any():
        return 0, np.zeros(len(host), np.bool_)
    return int(distances[0]), begins


def _leave_out_unrecorded(trace: Trace, states: Int64Array) -> None:
    """Marks complete steps that lack GPU work or a known start, unless no other is complete."""
    lost = lost_work(trace)
    numbers = trace.steps["step"].to_numpy()
    has_unknown_start = np.isin(numbers, lost.after_open_ends())
    unknown = trace.device_steps.filter(~pl.col("is_start_known"))["step"]
    has_unknown_start |= np.isin(numbers, unknown.to_numpy())
    for state, are_so in (
        (StepState.WORK_LOST, np.isin(numbers, lost.lacking())),
        (StepState.START_UNKNOWN, has_unknown_start),
    ):
        usable = states == _COMPLETE
        if (usable & ~are_so).any():
            states[usable & are_so] = _STATES.index(state)


def _longest_run(host: pl.DataFrame, usable: BoolArray) -> BoolArray:
    """The most usable steps that follow one another without a break; the first such run."""
    if not usable.any():
        return usable
    follows = np.zeros(len(host), np.bool_)
    follows[1:] = host["start_ns"][1:].to_numpy() == host["end_ns"][:-1].to_numpy()
    follows[1:] &= usable[1:] & usable[:-1]
    run = np.cumsum(~follows)
    counts = np.bincount(run[usable])
    best: BoolArray = usable & (run == int(np.argmax(counts)))
    return best
