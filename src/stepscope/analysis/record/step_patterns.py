"""What a record tells of its steps: cycles, level shifts, epochs, CPU time, pauses and compiling.

Where an iterator over a DataLoader begins, the training waits for the sampler, for workers that are
started, and for a batch that nobody has prepared. Such waits say nothing about the others, and more
workers shorten none of them.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.analysis.selection.outlier_steps import SLOW_FACTOR
from stepscope.run.step_record import StepRecord, input_wait
from stepscope.trace.arrays.intervals import BoolArray, Int64Array

_SLOWEST = 20
"""How many of the slowest steps tell the distances that are looked at."""
_LEAST_TIMES = 3
_MOSTLY_SLOW = 0.8
"""Of the steps at a distance, the share that must be slow."""
_EXPLAINED = 0.7
"""Of what all slow steps cost, the share that those at one distance must have."""


@dataclass(frozen=True)
class StepCycle:
    """Every so many steps, one is slow.

    Attributes:
        distance: How many steps lie between two slow ones.
        place: The remainder of the slow steps' numbers.
        excess_ns: The slow steps, and what each took beyond the median.
    """

    distance: int
    place: int
    excess_ns: dict[int, int]

    def is_slow(self, step: int) -> bool:
        """Whether a step of this number does what the slow ones do."""
        return step % self.distance == self.place


def find_cycle(steps: Sequence[int], slow: Mapping[int, int]) -> StepCycle | None:
    """The cycle in which steps are slow; None where there is no such cycle.

    Args:
        slow: What each slow one took beyond the median.
    """
    slowest = sorted(sorted(slow, key=lambda step: -slow[step])[:_SLOWEST])
    distances = {later - step for step, later in pairwise(slowest)}
    for distance in sorted(distances - {1}):
        cost: Counter[int] = Counter()
        for step, excess_ns in slow.items():
            cost[step % distance] += excess_ns
        place, cost_ns = cost.most_common(1)[0]
        at = {step: excess for step, excess in slow.items() if step % distance == place}
        first = min(at)
        due = sum(step % distance == place and step >= first for step in steps)
        is_regular = len(at) >= max(_LEAST_TIMES, _MOSTLY_SLOW * due)
        if is_regular and cost_ns >= _EXPLAINED * sum(slow.values()):
            return StepCycle(distance, place, at)
    return None


_LEAST_STEPS, _LEAST_SHARE = 10, 0.1
"""A level has at least so many steps, and this share of all."""
_LEAST_RATIO = 1.2
_SEPARATED = 0.9
_MOST_DRIFT = 0.25


@dataclass(frozen=True)
class LevelShift:
    """A change from one level of step times to another.

    Attributes:
        step: The first step of the later level.
        before_ns: Median step before it.
        after_ns: Median step from it on.
    """

    step: int
    before_ns: int
    after_ns: int

    @property
    def ratio(self) -> float:
        """How many times as long later steps take."""
        return self.after_ns / max(1, self.before_ns)


def find_level_shift(steady: Sequence[StepRecord]) -> LevelShift | None:
    """The clearest change of level; None if there is none.

    Definitions
        A rank-sum test tells where steps before and after differ most; the place near it that
        leaves the fewest steps on the wrong side of the middle between both medians is the change.
        It counts if the medians differ by a fifth or more, at least nine in ten steps of each side
        lie on their side of the middle, and neither side drifts: the medians of its halves differ
        by at most a quarter of what the levels do. So slow drifts, steps that alternate, and noise
        are none.

    Args:
        steady: Steady steps, in order.
    """
    durations = np.array([record.dur_ns for record in steady], np.int64)
    least = max(_LEAST_STEPS, math.ceil(_LEAST_SHARE * len(durations)))
    if len(durations) < 2 * least:
        return None
    place = _clearest_place(durations, _most_different(durations, least), least)
    sides = durations[:place], durations[place:]
    before, after = (float(np.median(side)) for side in sides)
    if max(before, after) < _LEAST_RATIO * min(before, after) or before == after:
        return None
    is_later = _is_of_later_level(durations, before, after)
    if is_later[place:].mean() < _SEPARATED or (~is_later[:place]).mean() < _SEPARATED:
        return None
    if any(_drift(side) > _MOST_DRIFT * abs(after - before) for side in sides):
        return None
    return LevelShift(steady[place].step, round(before), round(after))


def _most_different(durations: Int64Array, least: int) -> int:
    """Where ranks of the steps before and after differ most, with so many steps on each side."""
    _, inverse, counts = np.unique(durations, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    before = np.arange(least, len(durations) - least + 1)
    sums = np.cumsum(ranks - ranks.mean())[before - 1]
    return int(before[np.argmax(np.abs(sums) / np.sqrt(before * (len(durations) - before)))])


def _clearest_place(durations: Int64Array, place: int, least: int) -> int:
    """The place that leaves the fewest steps on the wrong side of the middle of both levels."""
    levels = float(np.median(durations[:place])), float(np.median(durations[place:]))
    is_later = _is_of_later_level(durations, *levels)
    before = np.arange(least, len(durations) - least + 1)
    wrong_before = np.cumsum(is_later)[before - 1]
    wrong_after = (~is_later).sum() - np.cumsum(~is_later)[before - 1]
    wrong = wrong_before + wrong_after
    return int(min(before[wrong == wrong.min()].tolist(), key=lambda one: abs(one - place)))


def _is_of_later_level(durations: Int64Array, before: float, after: float) -> BoolArray:
    is_above: BoolArray = durations > (before + after) / 2
    return is_above if after > before else ~is_above


def _drift(side: Int64Array) -> float:
    half = len(side) // 2
    return abs(float(np.median(side[half:])) - float(np.median(side[:half])))


@dataclass(frozen=True)
class EpochStarts:
    """Steps in which a DataLoader's iterator began, or its workers ended or started.

    Attributes:
        wait_ns: What these steps wait for their input, in total.
        excess_wait_ns: The part of it beyond the others' median.
        workers_ns: The part of it in which workers were ended and started.
        sampler_ns: The part of it in which the sampler made the first indices.
        others_ns: Mean duration of the other steps; 0 without such steps.
        longest_ns: The longest excess.
    """

    steps: tuple[int, ...] = ()
    wait_ns: int = 0
    excess_wait_ns: int = 0
    workers_ns: int = 0
    sampler_ns: int = 0
    others_ns: int = 0
    longest_ns: int = 0

    @property
    def first_batches_ns(self) -> int:
        """The rest of the excess: the first batches took longer than others."""
        return self.excess_wait_ns - self.workers_ns - self.sampler_ns

    @property
    def shortest(self) -> int:
        """Steps of the shortest epoch; 0 where fewer than two begin."""
        return min((later - step for step, later in pairwise(self.steps)), default=0)

    def kept_workers_save(self, workers: int, batch_ns: int | None = None) -> int:
        """What all these steps would save if the workers were kept.

        Ending and starting workers, and what the first batch took longer than a worker needs for
        one. Where that was not measured, it is what they save at least: workers that keep up make a
        batch within as many steps as there are workers. Whether they keep up, only epochs show that
        are longer than the workers' first batches.

        Args:
            batch_ns: What a worker was seen to need for a batch; None if that was not measured.
        """
        if batch_ns is not None:
            return self.workers_ns + max(0, self.first_batches_ns - len(self.steps) * batch_ns)
        if 0 < self.shortest <= workers:
            return self.workers_ns
        made_ns = len(self.steps) * workers * self.others_ns
        return self.workers_ns + max(0, self.first_batches_ns - made_ns)


def begins_epoch(record: StepRecord) -> bool:
    """Whether an epoch starts in a step. The training's first step is none of them."""
    return bool(record.step and _begins_iterator(record))


def _begins_iterator(record: StepRecord) -> bool:
    return bool(record.loader_workers_ns or record.epoch_start_ns)


def epoch_length(train: Sequence[StepRecord]) -> int:
    """Steps of an epoch, if all that begin take the same number; else 0.

    Args:
        train: All training steps, the first and those that were recorded in detail as well.
    """
    starts = [one.step for one in train if _begins_iterator(one)]
    lengths = {later - step for step, later in pairwise(starts)}
    return lengths.pop() if len(lengths) == 1 else 0


def epoch_starts(steady: Sequence[StepRecord]) -> EpochStarts:
    """Sum up the steps in which an epoch starts.

    If epochs start in most steps, the usual wait of a step is unknown, and only the parts that were
    measured count.
    """
    starts = [record for record in steady if begins_epoch(record)]
    if not starts:
        return EpochStarts()
    there = {record.step for record in starts}
    others = [record for record in steady if record.step not in there]
    usual_ns = None
    if len(others) >= len(starts):
        usual_ns = round(statistics.median(map(input_wait, others)))
    excess, workers_ns, sampler_ns = [], 0, 0
    for record in starts:
        measured_ns = record.loader_workers_ns + record.sampler_ns
        more_ns = measured_ns if usual_ns is None else max(0, input_wait(record) - usual_ns)
        excess.append(min(more_ns, input_wait(record)))
        sampler_ns += min(record.sampler_ns, excess[-1])
        workers_ns += min(record.loader_workers_ns, excess[-1] - min(record.sampler_ns, excess[-1]))
    return EpochStarts(
        steps=tuple(record.step for record in starts),
        wait_ns=sum(map(input_wait, starts)),
        excess_wait_ns=sum(excess),
        workers_ns=workers_ns,
        sampler_ns=sampler_ns,
        others_ns=round(statistics.fmean(record.dur_ns for record in others)) if others else 0,
        longest_ns=max(excess),
    )


@dataclass(frozen=True)
class HostTimes:
    """Means per step.

    Attributes:
        cpu_ns: Time that the training thread ran on a CPU; None if the record does not have it.
        queued_ns: Time that it was ready to run while others had the CPUs; None likewise.
        wait_cpu_share: Share of the wait for input in which it ran on a CPU or waited for one
            because it made the batch itself; None without a wait, or if the record does not have
            it.
        asleep_ns: Time in which it neither ran, nor waited for a CPU or for input (see `asleep`);
            None if unknown.
        gc_ns: Time in pauses of Python's garbage collector.
        gc_called_ns: The part of it in collections that code requested.
        gc_worst_ns: The longest such time in one step.
        is_on_device: Whether the record has times of a device: then a delay of the thread need not
            delay the step.
    """

    cpu_ns: int | None = None
    queued_ns: int | None = None
    wait_cpu_share: float | None = None
    asleep_ns: int | None = None
    gc_ns: int = 0
    gc_worst_ns: int = 0
    gc_called_ns: int = 0
    is_on_device: bool = False

    @property
    def wait_queued_share(self) -> float:
        """Share of the wait for input in which the thread waited for a CPU to make the batch.

        The record has that time for the whole step: it is taken to be spread evenly over all that
        the thread ran or wanted to run.
        """
        wanted_ns = (self.cpu_ns or 0) + (self.queued_ns or 0)
        return (self.wait_cpu_share or 0.0) * (self.queued_ns or 0) / max(1, wanted_ns)

    @property
    def loading_cpu_share(self) -> float | None:
        """Share of making a batch that is work for a CPU, without the wait for one; None likewise.

        On busy CPUs a loader that mostly waits for a disk waits for a CPU after each sample: that
        is no work.
        """
        if self.wait_cpu_share is None:
            return None
        queued = self.wait_queued_share
        return (self.wait_cpu_share - queued) / (1 - queued) if queued < 1 else self.wait_cpu_share


def host_times(records: Sequence[StepRecord]) -> HostTimes:
    """The means over some steps."""
    if not records:
        return HostTimes()
    waited_ns = sum(record.data_wait_ns for record in records)
    knows_cpu = all(record.cpu_ns is not None for record in records)
    share = None
    if waited_ns and knows_cpu:
        share = sum(record.data_wait_cpu_ns for record in records) / waited_ns
    return HostTimes(
        cpu_ns=_mean([record.cpu_ns for record in records]),
        queued_ns=_mean([_queued_ns(record) for record in records]),
        wait_cpu_share=share,
        asleep_ns=_mean([asleep(record) for record in records]),
        gc_ns=round(sum(record.gc_ns for record in records) / len(records)),
        gc_called_ns=round(sum(record.gc_called_ns for record in records) / len(records)),
        gc_worst_ns=max(record.gc_ns for record in records),
        is_on_device=any(record.device_ns is not None for record in records),
    )


def asleep(record: StepRecord) -> int | None:
    """The time of a step in which the training thread neither ran, nor waited for a CPU or input.

    None if the record does not have these, and where it has times of a device: the host of one
    waits for it.
    """
    queued_ns = _queued_ns(record)
    if record.cpu_ns is None or queued_ns is None or record.device_ns is not None:
        return None
    waited_ns = max(0, input_wait(record) - record.data_wait_cpu_ns)
    return max(0, record.dur_ns - record.cpu_ns - queued_ns - waited_ns)


def _queued_ns(record: StepRecord) -> int | None:
    """No more than the step has beside its CPU time: older records need not keep to that."""
    if record.queued_ns is None:
        return None
    return min(record.queued_ns, max(0, record.dur_ns - (record.cpu_ns or 0)))


def _mean(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known)) if len(known) == len(values) else None


LEAST_SHARE = 0.05
"""A step compiles if that takes at least this share of it."""
LEAST_RECURRING = 3
"""Fewer steps that compile meet something new: a last, smaller batch, a second shape."""
_MOSTLY = 0.5


@dataclass(frozen=True)
class CompileTimes:
    """Compiling by torch.compile over some steps.

    Attributes:
        steps: Numbers of the steps in which it takes at least `LEAST_SHARE`.
        lost_ns: What those steps took beyond the usual step because of it, in total: what was
            compiled beside other work costs less than it takes.
    """

    steps: tuple[int, ...] = ()
    total_ns: int = 0
    worst_ns: int = 0
    lost_ns: int = 0


def compile_times(records: Sequence[StepRecord], usual_ns: int) -> CompileTimes:
    """Compiling in some steps."""
    found = [one for one in records if _compiles(one)]
    return CompileTimes(
        steps=tuple(one.step for one in found),
        total_ns=sum(one.compile_ns for one in found),
        worst_ns=max((one.compile_ns for one in found), default=0),
        lost_ns=sum(min(one.compile_ns, max(0, one.dur_ns - usual_ns)) for one in found),
    )


def compiled_once(records: Sequence[StepRecord]) -> list[StepRecord]:
    """The steps that are slow because they compile something new, which later steps use.

    They take more than twice the median, at least half of that beyond it for compiling.

    Args:
        records: Steps that do not go on compiling (`recurs`), without slow ones at the beginning.
    """
    median_ns = statistics.median(one.dur_ns for one in records)
    return [
        one
        for one in records
        if _compiles(one)
        and one.dur_ns > SLOW_FACTOR * median_ns
        and one.compile_ns >= _MOSTLY * (one.dur_ns - median_ns)
    ]


def compiled_again_at_start(first: Sequence[StepRecord]) -> list[StepRecord]:
    """The slow first steps that compile after another has, if at least `LEAST_RECURRING` do.

    A model is compiled in the first step, and perhaps once more for sizes that change. More are
    compilations for something new in each, wherever in the run they come.
    """
    again = [one for one in first if _compiles(one)][1:]
    return again if len(again) >= LEAST_RECURRING else []


def recurs(records: Sequence[StepRecord]) -> bool:
    """Whether steps go on compiling: it is a habit of the training.

    At least `LEAST_RECURRING` of them do it, and one of them in their second half.

    Args:
        records: Steps in order, without slow ones at the beginning.
    """
    compiles = [_compiles(one) for one in records]
    return sum(compiles) >= LEAST_RECURRING and any(compiles[len(compiles) // 2 :])


def _compiles(record: StepRecord) -> bool:
    return record.compile_ns >= max(1, LEAST_SHARE * record.dur_ns)
