"""The summary of a step record: the steady step, where its time went, and its slow start."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from stepscope.analysis.record.step_patterns import (
    CompileTimes,
    EpochStarts,
    HostTimes,
    LevelShift,
    StepCycle,
    asleep,
    begins_epoch,
    compile_times,
    compiled_again_at_start,
    compiled_once,
    epoch_length,
    epoch_starts,
    find_cycle,
    find_level_shift,
    host_times,
    recurs,
)
from stepscope.analysis.selection.outlier_steps import (
    SLOW_FACTOR,
    START_UP_FACTOR,
    round_starts,
    single_stall,
    slow_first_steps,
)
from stepscope.analysis.selection.partition import INPUT, OTHER, Part, Partition
from stepscope.run.step_record import (
    BACKWARD,
    CHECKPOINT,
    END_OF_EPOCH,
    EVALUATION,
    FORWARD,
    OPTIMIZER,
    SAVING,
    StepRecord,
    input_wait,
    is_input_phase,
)
from stepscope.trace.arrays.intervals import Int64Array

BY_RECORD = "step record: the training thread's time"
UNEVEN_FACTOR = 1.15
"""If the mean exceeds the median by this factor, reports show both."""
_MOSTLY_ALIKE = 0.8
"""Share of the rounds of batches that must have the same length."""
_UPDATE_FACTOR = 20
"""How many times as long the optimizer takes where it updates as where it only counts."""
_PHASE_FACTOR = 3
_PHASE_BLAME = 0.7
_RARE_BLAME = 0.5
_FIRST_AT_MOST = 0.2  # of all steps: what lasts longer is no beginning
_NOTABLE_WAIT = 0.05
"""Of a slow step, what a first step waits at least for its input if workers start."""
_HARDLY_WAITS = 0.05
"""Of a step: what it waits for its input at most if its batch was ready."""
_AFTER_FACTOR = 1.25
"""How many times the median a step right after a window takes at least if the window slowed it,
where torch still detaches from a device (H200: 1.1 to 1.8 times, for one or two steps)."""
_AFTER_AT_MOST = 0.2  # of the steps that count: what lasts longer is no effect of a window's files
_LEAST_UNRECORDED = 5
_BEFORE = 5
_LEAST_BEFORE = 3
FEW_STEPS = 3
"""Of fewer complete steps, nothing tells which is slow because the training starts."""

NOTABLY_LONGER = 1.05
"""How many times as long recorded steps must be to be told apart from unrecorded ones."""


@dataclass(frozen=True)
class ExcludedSteps:
    """Numbers of steps that are not steady, by reason. A step has one reason.

    Attributes:
        partial: The loop ended within the step.
        other_kind: Evaluations, checkpoints and similar work.
        first: Slow steps at the start.
        recorded: Recorded in detail, which slows them down.
        compiled: Slow because they compiled something new (`host_time.compiled_once`).
        stalled: The single step that took more than three times the median.
        after_window: Slow right after steps recorded in detail: the files of a window are made
            beside them, which takes CPUs.
        part_of_round: Part of an epoch, or of a round of batches, of which other steps do not count
            (`_in_rounds`).
    """

    partial: int = 0
    other_kind: int = 0
    first: int = 0
    recorded: int = 0
    compiled: int = 0
    stalled: int = 0
    after_window: int = 0
    part_of_round: int = 0


@dataclass(frozen=True)
class PhaseTimes:
    """One phase over the steady steps.

    Attributes:
        name: Its path, "outer/inner" where phases lie in each other.
        median_ns: Median over the steps that have it.
        slow_steps: Steps in which it took more than three times what is usual and caused at least
            70% of what the step took beyond the median step. A busy machine slows all phases, so
            no single one is the cause. Usual is its median. If fewer than half of the steps have
            it, it is unusual in all of them, and half of what the step took beyond is enough:
            what goes with it, such as making what is saved, has no phase.
        excess_ns: What it took in those steps beyond what is usual, in total.
    """

    name: str
    total_ns: int
    median_ns: int
    steps: int
    slow_steps: tuple[int, ...]
    excess_ns: int
    worst_ns: int
    is_rare: bool = False
    """Whether fewer than half of the steps have it."""


BEFORE_TRAINING = "evaluation before training"
"""Kind of the evaluations before the first step, such as Lightning's sanity check: they come once,
however long the training is, and are none of those that the training makes."""


@dataclass(frozen=True)
class OtherKind:
    """Work outside training steps, such as evaluations."""

    kind: str
    times: int
    total_ns: int


@dataclass(frozen=True)
class StepSummary:
    """The steady steps of one rank.

    Attributes:
        steps: Numbers of the steady steps; everything below covers these unless stated otherwise.
        excluded: How many steps were left out, and why.
        mean_ns: Mean duration: the step time that reports state, because its parts add up to it.
        mean_device_ns: Mean time from one step's end to the next on the device, by events on its
            current stream; None if more than one step in ten lacks it.
        partition: Input wait, phases and the rest.
        own_ns: Stepscope's own time, which no step here has.
        after_calls_ns: The part of forward between the model's call and backward, in all of them.
        lasting_wait_ns: Mean input wait of the first half of the steps, or of the others if these
            wait less: a loader that only starts late makes the first steps wait.
        ready_ns: Median duration of the steps that hardly waited for their input, if they are half
            of the steps or more; else 0.
        usual_ns: Mean duration without the slow steps (`slow_steps`).
        usual_own_ns: The same without the input wait.
        phases: The phases, the longest first.
        first_steps: Numbers of the slow steps at the start.
        first_excess_ns: What they took beyond the steady median, in total.
        observed_ns: Duration of all steps of the record, including excluded ones.
        tokens_per_second: Tokens per second of steady steps, if the loop counted them.
        slow_steps: Steps that took more than twice the median.
        slow_excess_ns: What each of those took beyond the median.
        waiting_steps: Those of them of which the wait for the input, beyond its median, is at least
            half of that.
        queued_steps: The same for the wait for a CPU that others had, but for steps that come at
            one distance and would be slow without it, too: what does more also waits more often.
        sleeping_steps: The same for the time in which the training thread neither ran, nor waited
            for a CPU or for its input, as where it waits for other ranks.
        queued_excess_ns: What these waited for a CPU beyond the median, in total.
        cycle: The distance at which steps are slow, whatever they are slow for; None for none.
        updates: The distance at which the optimizer updates, where most steps accumulate gradients;
            None where all update, or no phase tells.
        shift: The step from which on steps take another time; None if there is no such step.
        epoch_starts: Steps in which a DataLoader's iterator began.
        recording_factor: Median recorded step divided by the median unrecorded one, or by that of
            the last steps before a window if these took longer: then the steps changed for
            another reason. None if either is missing.
        other_kinds: Work outside the steps, the longest first.
        stalled_step: Number of the single step that took more than three times the median and is
            left out; None if there is none.
        stalled_saving_ns: How long it saved, where that is most of what it took beyond the median.
        compiled_once: Compiling in the steps that are left out because of it, and in slow first
            steps that compiled again (`step_patterns.compiled_again_at_start`).
        host: CPU time, waits for a CPU and garbage collection of the training thread.
        recorded_host: The same for the steps recorded in detail.
    """

    steps: tuple[int, ...]
    excluded: ExcludedSteps
    median_ns: int
    mean_ns: int
    worst_ns: int
    partition: Partition
    median_wait_ns: int
    lasting_wait_ns: int
    usual_ns: int
    usual_own_ns: int
    phases: tuple[PhaseTimes, ...]
    first_steps: tuple[int, ...]
    first_excess_ns: int
    first_worst_ns: int
    observed_ns: int
    tokens_per_second: float | None
    samples_per_second: float | None
    slow_steps: tuple[int, ...]
    slow_excess_ns: tuple[int, ...]
    recording_factor: float | None
    other_kinds: tuple[OtherKind, ...] = ()
    stalled_step: int | None = None
    stalled_ns: int = 0
    stalled_gc_ns: int = 0
    stalled_saving_ns: int = 0
    compiling: CompileTimes = field(default_factory=CompileTimes)
    compiled_once: CompileTimes = field(default_factory=CompileTimes)
    goes_on_compiling: bool = False
    first_compile_ns: int = 0
    steps_after_window: tuple[int, ...] = ()
    host: HostTimes = field(default_factory=HostTimes)
    recorded_host: HostTimes = field(default_factory=HostTimes)
    waiting_steps: tuple[int, ...] = ()
    queued_steps: tuple[int, ...] = ()
    sleeping_steps: tuple[int, ...] = ()
    queued_excess_ns: int = 0
    cycle: StepCycle | None = None
    updates: StepCycle | None = None
    shift: LevelShift | None = None
    epoch_starts: EpochStarts = field(default_factory=EpochStarts)
    mean_device_ns: int | None = None
    after_calls_ns: int = 0
    own_ns: int = 0
    ready_ns: int = 0

    @property
    def wait_ns(self) -> int:
        """Mean wait for the input."""
        return round(self.partition.of(INPUT) / len(self.steps))

    @property
    def complete_steps(self) -> int:
        """How many complete steps of the training there are, those that are left out included."""
        excluded = self.excluded
        left_out = excluded.first + excluded.recorded + excluded.compiled + excluded.stalled
        left_out += excluded.after_window + excluded.part_of_round
        return len(self.steps) + left_out

    @property
    def holds_only_first_steps(self) -> bool:
        """Whether there are fewer than `FEW_STEPS` complete steps, with the training's first.

        Then the steps shown may be start-up: memory is requested, kernels are chosen, code is
        compiled.
        """
        return self.holds_few_steps and 0 in self.steps

    @property
    def holds_few_steps(self) -> bool:
        """Whether there are fewer than `FEW_STEPS` complete steps: nothing tells which is usual."""
        return self.complete_steps < FEW_STEPS


def is_uneven(mean_ns: int, median_ns: int) -> bool:
    """Whether the mean is so far above the median that some steps must take far longer."""
    return mean_ns > UNEVEN_FACTOR * median_ns


def is_in_cycle(summary: StepSummary, step: int) -> bool:
    """Whether a step is slow because it comes at the distance at which steps are slow."""
    return summary.cycle is not None and summary.cycle.is_slow(step)


def summarise_steps(records: Sequence[StepRecord]) -> StepSummary | None:
    """Summarise a step record; None if it has no complete training step.

    Steady steps are complete training steps except the slow first ones, slow ones right after a
    window, a single stall (`selection.outlier_steps`), and those that compiled something new. Steps
    recorded in detail are slower, so they count only if fewer than five others remain. Where
    epochs begin at one distance, or batches come several at a time, whole rounds count.
    Stepscope's own time, which the record has apart, is no part of any step.
    """
    own_ns = sum(record.own_ns for record in records)
    records = without_own_time(records)
    # After the last step, a record may have a loss alone.
    partial = [one for one in records if one.is_partial and (one.loss is None or one.phases)]
    other = [record for record in records if not record.is_partial and record.kind != "train"]
    train = [record for record in records if record.is_whole_step]
    if not train:
        return None
    first = _slow_first(train)
    later = train[len(first) :]
    plain = [record for record in later if record.window is None]
    recorded = [record for record in later if record.window is not None]
    usual = plain if len(plain) >= _LEAST_UNRECORDED else later
    goes_on_compiling = recurs(usual)
    compiled = [] if goes_on_compiling else compiled_once(usual)
    again = [] if goes_on_compiling else compiled_again_at_start(first)
    left_out = set(map(id, compiled))
    others = [record for record in usual if id(record) not in left_out]
    after = _slow_after_windows(later, others)
    left_out |= set(map(id, after))
    others = [record for record in others if id(record) not in left_out]
    stall = _stall(others)
    with_parts = [record for record in others if record is not stall]
    steady = _in_rounds(with_parts, epoch_length(train))
    median_ns = _median(record.dur_ns for record in steady)
    total_ns = sum(record.dur_ns for record in steady)
    slow = [record for record in steady if record.dur_ns > SLOW_FACTOR * median_ns]
    not_slow = [record for record in steady if record.dur_ns <= SLOW_FACTOR * median_ns]
    median_wait_ns = _median(input_wait(record) for record in steady)
    in_cycle = _in_cycle_without_queue(steady, slow)
    excess_ns = {record.step: record.dur_ns - median_ns for record in slow}
    cycle = find_cycle([record.step for record in steady], excess_ns)
    updates = _updates(steady)
    others_slow = [record for record in slow if record.step not in in_cycle]
    queued = _beyond_median(steady, others_slow, _queued, median_ns)
    return StepSummary(
        steps=tuple(record.step for record in steady),
        excluded=ExcludedSteps(
            partial=len(partial),
            other_kind=len(other),
            first=len(first),
            recorded=len(later) - len(usual),
            compiled=len(compiled),
            stalled=len(others) - len(with_parts),
            after_window=len(after),
            part_of_round=len(with_parts) - len(steady),
        ),
        median_ns=median_ns,
        mean_ns=round(total_ns / len(steady)),
        worst_ns=max(record.dur_ns for record in steady),
        partition=partition_steps(steady),
        median_wait_ns=median_wait_ns,
        lasting_wait_ns=_lasting_wait_ns(steady),
        usual_ns=_mean(record.dur_ns for record in not_slow),
        usual_own_ns=_mean(record.dur_ns - input_wait(record) for record in not_slow),
        phases=_phases(steady, median_ns),
        first_steps=tuple(record.step for record in first),
        first_excess_ns=sum(record.dur_ns - median_ns for record in first),
        first_worst_ns=max((record.dur_ns for record in first), default=0),
        observed_ns=sum(record.dur_ns for record in records),
        tokens_per_second=rate([record.tokens for record in steady], total_ns),
        samples_per_second=rate([record.samples for record in steady], total_ns),
        slow_steps=tuple(record.step for record in slow),
        slow_excess_ns=tuple(record.dur_ns - median_ns for record in slow),
        recording_factor=_recording_factor(train, plain, recorded, cycle or updates),
        other_kinds=_other_kinds(other, _evaluations_before(records)),
        stalled_step=None if stall is None else stall.step,
        stalled_ns=0 if stall is None else stall.dur_ns,
        stalled_gc_ns=0 if stall is None else stall.gc_ns,
        stalled_saving_ns=0 if stall is None else _mostly_saving_ns(stall, median_ns),
        compiling=compile_times(steady, median_ns),
        compiled_once=compile_times([*again, *compiled], median_ns),
        goes_on_compiling=goes_on_compiling,
        first_compile_ns=sum(record.compile_ns for record in first),
        steps_after_window=tuple(record.step for record in after),
        host=host_times(steady),
        recorded_host=host_times(recorded),
        waiting_steps=tuple(_beyond_median(steady, slow, input_wait, median_ns)),
        queued_steps=tuple(queued),
        sleeping_steps=tuple(_beyond_median(steady, slow, _asleep, median_ns)),
        queued_excess_ns=sum(queued.values()),
        cycle=cycle,
        updates=updates,
        shift=find_level_shift(steady),
        epoch_starts=epoch_starts(steady),
        mean_device_ns=_mean_device_ns(steady),
        own_ns=own_ns,
        after_calls_ns=sum(record.after_call_ns for record in steady),
        ready_ns=_ready_ns(steady),
    )


def _updates(steady: list[StepRecord]) -> StepCycle | None:
    """The cycle of the steps that spend far more in the optimizer than a quarter of all do.

    An engine's `step()` is called for each micro-batch, and costs little where it only counts.
    """
    spent = {
        record.step: sum(
            ns for name, ns in record.phases.items() if name.rpartition("/")[2] == OPTIMIZER
        )
        for record in steady
    }
    usual_ns = sorted(spent.values())[len(spent) // 4]
    updating = {step: ns for step, ns in spent.items() if ns > _UPDATE_FACTOR * usual_ns}
    return find_cycle(list(spent), updating)


def without_own_time(records: Sequence[StepRecord]) -> Sequence[StepRecord]:
    """The records without Stepscope's own time, which is no part of any step that is shown."""
    if not any(one.own_ns for one in records):
        return records
    return [
        one
        if not one.own_ns
        else replace(
            one,
            dur_ns=max(0, one.dur_ns - one.own_ns),
            cpu_ns=None if one.cpu_ns is None else max(0, one.cpu_ns - one.own_ns),
            own_ns=0,
        )
        for one in records
    ]


def _stall(usual: list[StepRecord]) -> StepRecord | None:
    """The single step that took far longer than the others for another reason than its input.

    While an epoch's workers start, more than the wait for its first batch takes longer.
    """
    durations = np.array([record.dur_ns for record in usual], np.int64)
    place = single_stall(durations, np.array([input_wait(record) for record in usual], np.int64))
    return None if place is None or begins_epoch(usual[place]) else usual[place]


def _mostly_saving_ns(stall: StepRecord, median_ns: int) -> int:
    saving_ns = stall.phases.get(SAVING, 0)
    return saving_ns if 2 * saving_ns >= stall.dur_ns - median_ns else 0


def _in_rounds(steady: list[StepRecord], epoch: int) -> list[StepRecord]:
    """The steps of whole epochs, or where batches come so many at a time of whole rounds; else all.

    Several workers that cannot keep up finish their batches together: one step waits for a round of
    them, and the next ones find theirs ready. Steps that do not count take parts of rounds with
    them, and while a window is recorded, batches are made that its next round does not wait for.

    Args:
        epoch: Steps of an epoch; 0 if unknown.
    """
    numbers = np.array([record.step for record in steady], np.int64)
    if not len(numbers):
        return steady
    run = np.cumsum(np.diff(numbers, prepend=numbers[0] - 1) != 1)
    epochs = np.flatnonzero([begins_epoch(record) for record in steady])
    if found := _whole(steady, run, epochs, alike=1.0, is_first_odd=False):
        return found
    if len(epochs) and epoch:
        # Of an epoch's steps, counted from any of them, one begins it.
        sizes = np.bincount(run)
        until_end = np.cumsum(sizes)[run] - np.arange(len(run))
        kept = [steady[at] for at in np.flatnonzero(until_end <= (sizes // epoch * epoch)[run])]
        if 2 * len(kept) >= len(steady):
            return kept
    waits = np.array([input_wait(record) for record in steady], np.int64)
    if waits.sum() < _NOTABLE_WAIT * sum(record.dur_ns for record in steady):
        return steady
    # Where every step waits for the rest of a batch, the first of a round waits longer than usual.
    for usual in (0, int(np.median(waits))):
        rounds = round_starts(np.maximum(waits - usual, 0))
        if found := _whole(steady, run, rounds, alike=_MOSTLY_ALIKE, is_first_odd=True):
            return found
    return steady


def _whole(
    steady: list[StepRecord],
    run: Int64Array,
    starts: Int64Array,
    *,
    alike: float,
    is_first_odd: bool,
) -> list[StepRecord]:
    """The steps of whole rounds, half of all at least; else none.

    Args:
        run: To which steps that follow one another each belongs.
        starts: The places where rounds begin.
        alike: How many of the rounds must have the same length, of all.
        is_first_odd: Whether the first round after a gap does not count.
    """
    lengths = np.diff(starts)[run[starts[1:]] == run[starts[:-1]]]
    length = int(np.median(lengths)) if len(lengths) else 1
    if length == 1 or (lengths == length).mean() < alike:
        return []
    kept: list[StepRecord] = []
    for one in range(int(run[-1]) + 1):
        mine = starts[run[starts] == one][int(is_first_odd and one > 0) :]
        if len(mine):
            size = (int((run <= one).sum()) - mine[0]) // length * length
            kept += steady[mine[0] : mine[0] + size]
    return kept if 2 * len(kept) >= len(steady) else []


def _mean_device_ns(steady: Sequence[StepRecord]) -> int | None:
    """Steps right after some that do not count may have work of those in them.

    Each of them counts as what the step that took most nearly as long has: the first of an epoch or
    a round of batches as another first one. Steps at the beginning that are slow on the device
    alone, where it worked off what came before, do not count.
    """
    follows = [later for one, later in pairwise(steady) if later.step == one.step + 1]
    known = [one for one in follows if one.device_ns is not None]
    on_device = np.array([one.device_ns for one in known], np.int64)
    known = known[slow_first_steps(on_device, np.zeros_like(on_device)) :]
    if not known or 10 * len(known) < 9 * len(follows):
        return None
    numbers = {one.step for one in follows}
    durations = np.array([one.dur_ns for one in known], np.int64)
    alike = (
        known[int(np.abs(durations - one.dur_ns).argmin())]
        for one in steady
        if one.step not in numbers
    )
    return _mean(one.device_ns or 0 for one in (*known, *alike))


def _lasting_wait_ns(steady: Sequence[StepRecord]) -> int:
    half = len(steady) // 2
    waits = [input_wait(record) for record in steady]
    return min(_mean(waits[:half]), _mean(waits[half:])) if half else _mean(waits)


def _ready_ns(steady: Sequence[StepRecord]) -> int:
    ready = [one.dur_ns for one in steady if input_wait(one) <= _HARDLY_WAITS * one.dur_ns]
    return _median(ready) if 2 * len(ready) >= len(steady) else 0


def _queued(record: StepRecord) -> int:
    return record.queued_ns or 0


def _asleep(record: StepRecord) -> int:
    return asleep(record) or 0


def _in_cycle_without_queue(
    steady: Sequence[StepRecord], slow: Sequence[StepRecord]
) -> Container[int]:
    """The slow steps of a cycle that take over twice the median without waits for a CPU, too."""
    median_ns = _median(record.dur_ns - _queued(record) for record in steady)
    more = {record.step: record.dur_ns - _queued(record) - median_ns for record in slow}
    slower = {step: more_ns for step, more_ns in more.items() if more_ns > median_ns}
    cycle = find_cycle([record.step for record in steady], slower)
    return () if cycle is None else cycle.excess_ns


def _beyond_median(
    steady: Sequence[StepRecord],
    slow: Sequence[StepRecord],
    part: Callable[[StepRecord], int],
    median_step_ns: int,
) -> dict[int, int]:
    """The slow steps that are slow mostly because of one part, and what they have more of it."""
    usual_ns = _median(map(part, steady))
    found = {}
    for record in slow:
        more_ns = part(record) - usual_ns
        if 2 * more_ns >= record.dur_ns - median_step_ns:
            found[record.step] = more_ns
    return found


def _evaluations_before(records: Sequence[StepRecord]) -> list[StepRecord]:
    """The evaluations that a record begins with: no step of the training came before."""
    not_training = (EVALUATION, CHECKPOINT, END_OF_EPOCH)
    early = itertools.takewhile(lambda record: record.kind in not_training, records)
    return [record for record in early if record.kind == EVALUATION]


def _other_kinds(
    records: Iterable[StepRecord], before_training: Sequence[StepRecord]
) -> tuple[OtherKind, ...]:
    early = set(map(id, before_training))
    times: dict[str, list[int]] = {}
    for record in records:
        ending_ns = min(record.phases.get(END_OF_EPOCH, 0), record.dur_ns)
        if ending_ns:
            times.setdefault(END_OF_EPOCH, []).append(ending_ns)
        saving_ns = 0
        if record.kind == EVALUATION:  # the Trainer of transformers saves right after it
            saving_ns = min(record.phases.get(SAVING, 0), record.dur_ns - ending_ns)
        if saving_ns:
            times.setdefault(CHECKPOINT, []).append(saving_ns)
        kind = BEFORE_TRAINING if id(record) in early else record.kind
        times.setdefault(kind, []).append(record.dur_ns - ending_ns - saving_ns)
    kinds = (OtherKind(kind, len(own), sum(own)) for kind, own in times.items())
    return tuple(sorted(kinds, key=lambda other: -other.total_ns))


def _slow_first(train: list[StepRecord]) -> list[StepRecord]:
    """The slow steps at the start of the record, up to the first that is not slow.

    So are those that wait longer for their input than any later step, by far: workers start. A step
    that was recorded ends neither, unless it is the first: recording may be why it is slow.
    """
    most = int(len(train) * _FIRST_AT_MOST)
    if not most:
        return []
    limit_ns = START_UP_FACTOR * _median(record.dur_ns for record in train[most:])
    count = 0
    while count < most and train[count].dur_ns > limit_ns:
        count += 1
    tells = [at for at in range(most) if not at or train[at].window is None]
    count = max((at + 1 for at in tells if at < count), default=0)
    later_ns = max(input_wait(record) for record in train[most:])
    started_ns = max(START_UP_FACTOR * later_ns, limit_ns * _NOTABLE_WAIT)
    waited = [at for at in tells if input_wait(train[at]) > started_ns]
    return train[: max([count, *(at + 1 for at in waited)])]


def _slow_after_windows(later: list[StepRecord], others: list[StepRecord]) -> list[StepRecord]:
    """The slow steps right after each window, up to the first that is not slow.

    What a step waits for its input is the loader's, not the recorder's.

    Args:
        later: All steps but the slow first ones, in order.
        others: Those of them that may count as steady.
    """
    may_count = set(map(id, others))
    is_on_device = any(record.device_ns is not None for record in others)
    factor = _AFTER_FACTOR if is_on_device else START_UP_FACTOR
    limit_ns = factor * _median(record.dur_ns for record in others)
    most = max(1, int(len(others) * _AFTER_AT_MOST))
    slow: list[StepRecord] = []
    follows = False
    for record in later:
        if record.window is not None:
            follows = True
        elif follows and record.dur_ns - input_wait(record) > limit_ns:
            slow += [record] if id(record) in may_count else []
        else:
            follows = False
    return slow if len(slow) <= most else []


def _recording_factor(
    train: list[StepRecord],
    plain: list[StepRecord],
    recorded: list[StepRecord],
    cycle: StepCycle | None,
) -> float | None:
    """How many times as long recorded steps take as unrecorded ones; None if either is missing.

    Steps before a window that take longer than it belong to the start, not to its usual pace. Where
    every so many steps one is slow, those between are compared.
    """
    if not plain or not recorded:
        return None
    if cycle is not None:
        usual = [record for record in recorded if not cycle.is_slow(record.step)]
        # Where only slow ones were recorded, they are compared with their like.
        plain = [record for record in plain if cycle.is_slow(record.step) != bool(usual)] or plain
        recorded = usual or recorded
    recorded_ns = _median(record.dur_ns for record in recorded)
    usual_ns = _median(record.dur_ns for record in plain)
    before_ns = [
        _median(record.dur_ns for record in before)
        for place in range(1, len(train))
        if train[place].window is not None and train[place - 1].window is None
        if len(before := _unhurried(train[max(0, place - _BEFORE) : place])) >= _LEAST_BEFORE
    ]
    if before_ns and _median(before_ns) <= recorded_ns:
        usual_ns = max(usual_ns, _median(before_ns))
    return recorded_ns / max(1, usual_ns)


def _unhurried(records: list[StepRecord]) -> list[StepRecord]:
    """Those that neither record nor compile."""
    return [record for record in records if record.window is None and not record.compile_ns]


def _top_phases(record: StepRecord) -> dict[str, int]:
    """Outermost phases other than the input, clipped so that they fit into the step."""
    left_ns = record.dur_ns - input_wait(record)
    phases = {}
    for name, duration_ns in record.phases.items():
        if "/" not in name and not is_input_phase(name):
            phases[name] = min(duration_ns, left_ns)
            left_ns -= phases[name]
    return phases


def partition_steps(steady: Sequence[StepRecord]) -> Partition:
    """Input wait, outermost phases, and the rest; they add up to the steps' time."""
    totals: dict[str, int] = {INPUT: sum(map(input_wait, steady))}
    there = {name for record in steady for name in record.phases}
    totals |= {name: 0 for name in (FORWARD, BACKWARD, OPTIMIZER) if name in there}
    for record in steady:
        for name, duration_ns in _top_phases(record).items():
            totals[name] = totals.get(name, 0) + duration_ns
    total_ns = sum(record.dur_ns for record in steady)
    totals[OTHER] = totals.get(OTHER, 0) + total_ns - sum(totals.values())
    parts = tuple(Part(name, part_ns) for name, part_ns in totals.items())
    return Partition(parts, total_ns, len(steady), BY_RECORD)


def _phases(steady: list[StepRecord], median_step_ns: int) -> tuple[PhaseTimes, ...]:
    by_name: dict[str, list[tuple[StepRecord, int]]] = {}
    for record in steady:
        for name, duration_ns in record.phases.items():
            by_name.setdefault(name, []).append((record, duration_ns))
    phases = []
    for name, times in by_name.items():
        median_ns = _median(ns for _, ns in times)
        is_rare = 2 * len(times) < len(steady)
        usual_ns, blame = (0, _RARE_BLAME) if is_rare else (median_ns, _PHASE_BLAME)
        slow = [
            (record.step, ns)
            for record, ns in times
            if ns > _PHASE_FACTOR * usual_ns
            and ns - usual_ns >= blame * (record.dur_ns - median_step_ns)
        ]
        phases.append(
            PhaseTimes(
                name=name,
                total_ns=sum(ns for _, ns in times),
                median_ns=median_ns,
                steps=len(times),
                slow_steps=tuple(step for step, _ in slow),
                excess_ns=sum(ns - usual_ns for _, ns in slow),
                worst_ns=max(ns for _, ns in times),
                is_rare=is_rare,
            )
        )
    return tuple(sorted(phases, key=lambda phase: -phase.total_ns))


def rate(counts: Sequence[int | None], total_ns: int) -> float | None:
    """How much was done in a second, where every step counted it."""
    known = [count for count in counts if count is not None]
    if len(known) < len(counts) or not total_ns:
        return None
    return sum(known) * 1e9 / total_ns


def _median(values: Iterable[int]) -> int:
    return round(statistics.median(values))


def _mean(values: Iterable[int]) -> int:
    return round(statistics.fmean(values))
