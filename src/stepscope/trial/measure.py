"""Compares steps and losses of several processes: the ratio of mean steps, with its interval.

A process gives the mean of its steady steps, warm-up left out: those that `summarise_steps` calls
steady. The interval is Welch's, for the difference of the logarithms of the two sides' means over
their processes: it makes no assumption about equal spreads. Each side's variance is that between
its processes, or, if that is smaller, the variance that the steps within the processes leave: the
standard error of means of blocks of consecutive steps, which allows for steps that depend on their
neighbours. So two processes that happen to agree do not feign certainty, and a single process has
an interval, too.

Two curves of losses differ by the root mean square of their relative differences, backward pass by
backward pass, over as many as both have. The script itself is run several times: if its own runs
differ, because it does not fix its seeds or its sums round differently each time, that is the
noise.

Workers of a loader have random numbers of their own. A script that augments its data sees others
with other workers, and so other losses in each step, without a training that is worse. Where a fix
does that, curves are compared by the mean of their relative differences, with its 95% interval from
blocks of consecutive losses: it has to hold 0, and to be narrow enough to tell.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.analysis.comparison.repeated_runs import MeanError, student_95, welch_95
from stepscope.analysis.record.summary import summarise_steps, without_own_time
from stepscope.opening.trials import (
    CHANGED,
    CLOSE,
    REDRAWN,
    SAME,
    UNKNOWN,
    WITHIN_NOISE,
    LossRecord,
)
from stepscope.run.step_record import StepRecord

LEAST_STEPS = 6
"""Steady steps that a process must have."""
BLOCKS = 6
"""Into how many blocks consecutive steps, or losses, are divided at least."""


@dataclass(frozen=True)
class ProcessSteps:
    """The steady steps of one process.

    Attributes:
        error_ns: Standard error of the mean, from blocks of consecutive steps.
    """

    mean_ns: float
    error_ns: float
    steps: int
    blocks: int


@dataclass(frozen=True)
class Ratio:
    """A ratio of two mean steps with its 95% interval."""

    value: float
    low: float
    high: float


def steps_of(records: Sequence[StepRecord], warm_up: int) -> ProcessSteps | None:
    """The steady steps of a process; None if it has too few.

    Args:
        warm_up: Number of first steps to leave out.
    """
    summary = summarise_steps(records)
    # Of the whole record: where warm-up ends with an epoch, the first step that counts is slow,
    # but not because the training starts.
    steady = set() if summary is None else {step for step in summary.steps if step >= warm_up}
    if len(steady) < LEAST_STEPS:
        return None
    records = without_own_time(records)
    durations = [r.dur_ns for r in records if r.is_whole_step and r.step in steady]
    means = means_of_blocks(durations)
    error_ns = standard_error(means)
    return ProcessSteps(statistics.fmean(durations), error_ns, len(durations), len(means))


def slowest_rank(ranks: Sequence[ProcessSteps]) -> ProcessSteps:
    """The rank whose steps represent the job: the one with the longest mean step."""
    return max(ranks, key=lambda rank: rank.mean_ns)


def ratio_of(after: Sequence[ProcessSteps], before: Sequence[ProcessSteps]) -> Ratio:
    """The mean step after over the mean step before, over processes; neither side is empty."""
    (after_ns, first), (before_ns, second) = _relative(after), _relative(before)
    value, reach = after_ns / before_ns, welch_95(first, second)
    return Ratio(value, value * math.exp(-reach), value * math.exp(reach))


def _relative(processes: Sequence[ProcessSteps]) -> tuple[float, MeanError]:
    """The mean of one side, and how well the mean's logarithm is known."""
    number = len(processes)
    mean_ns = statistics.fmean(one.mean_ns for one in processes)
    within = statistics.fmean(one.error_ns**2 for one in processes) / number
    if number > 1:
        between = statistics.variance([one.mean_ns for one in processes]) / number
        if between > within:
            return mean_ns, MeanError(between / mean_ns**2, number - 1.0)
    freedom = float(sum(one.blocks - 1 for one in processes))
    return mean_ns, MeanError(within / mean_ns**2, freedom)


def means_of_blocks(values: Sequence[float]) -> list[float]:
    """The means of blocks of consecutive values, which may depend on their neighbours."""
    size = max(1, len(values) // BLOCKS)
    starts = range(0, len(values) - size + 1, size)
    return [statistics.fmean(values[start : start + size]) for start in starts]


def standard_error(values: Sequence[float]) -> float:
    """The standard error of the mean of at least two independent values."""
    return statistics.stdev(values) / math.sqrt(len(values))


ROUNDING = 0.01
"""Curves that differ by less are close: other kernels and other precision round differently."""
_NOISE_FACTOR = 1.5
_LEAST = 3
_NARROW = 0.1
"""A mean difference with an interval that reaches farther from 0 might hide a change."""


def compare_losses(
    trial: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]], *, redraws: bool = False
) -> LossRecord:
    """Compare the losses of a trial's processes with those of the baseline's.

    Args:
        redraws: Whether the fix has random numbers for the data drawn in another order.
    """
    ours = [losses for losses in trial if len(losses) >= _LEAST]
    theirs = [losses for losses in baseline if len(losses) >= _LEAST]
    if not ours or not theirs:
        return LossRecord(UNKNOWN)
    compared = min(map(len, (*ours, *theirs)))
    difference = min(_distance(a, b, compared) for a in ours for b in theirs)
    pairs = itertools.combinations(theirs, 2)
    noise = max((_distance(a, b, compared) for a, b in pairs), default=None)
    verdict = _verdict(difference, noise)
    if verdict == CHANGED and redraws and _same_on_average(ours, theirs, compared):
        verdict = REDRAWN
    return LossRecord(verdict, _finite(difference), _finite(noise), compared)


def why_changed(losses: LossRecord, *, redraws: bool) -> str:
    """Why losses are said to be changed where the fix must change single ones; empty elsewhere."""
    if losses.verdict != CHANGED or not redraws:
        return ""
    return (
        "random numbers for the data are drawn in another order, and "
        f"{losses.compared:,} losses do not show that they are the same on average"
    )


def _verdict(difference: float, noise: float | None) -> str:
    if difference == 0:
        return SAME
    if noise and difference <= _NOISE_FACTOR * noise:
        return WITHIN_NOISE
    return CLOSE if difference <= ROUNDING else CHANGED


def _distance(first: Sequence[float], second: Sequence[float], number: int) -> float:
    """Root mean square of relative differences; infinite if only one of two is finite."""
    total = 0.0
    for a, b in zip(first[:number], second[:number], strict=True):
        if not math.isfinite(a) or not math.isfinite(b):
            if repr(a) != repr(b):
                return math.inf
            continue
        total += _relative_difference(a, b) ** 2
    return math.sqrt(total / number)


def _relative_difference(first: float, second: float) -> float:
    scale = max(abs(first), abs(second))
    return (first - second) / scale if scale else 0.0


def _same_on_average(
    trial: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]], number: int
) -> bool:
    """Whether the trial's mean losses are neither higher nor lower, as far as is known."""
    if number < BLOCKS:
        return False
    means = [_mean_curve(curves, number) for curves in (trial, baseline)]
    differences = [_relative_difference(a, b) for a, b in zip(*means, strict=True)]
    if not all(map(math.isfinite, differences)):
        return False
    blocks = means_of_blocks(differences)
    reach = student_95(len(blocks) - 1) * standard_error(blocks)
    return abs(statistics.fmean(blocks)) <= reach <= _NARROW


def _mean_curve(curves: Sequence[Sequence[float]], number: int) -> list[float]:
    return [statistics.fmean(curve[step] for curve in curves) for step in range(number)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
