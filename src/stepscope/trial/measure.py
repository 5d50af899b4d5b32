"""Compares steps of several processes: the ratio of their means, with its interval.

A process gives the mean of its steady steps, warm-up left out: those that `summarise_steps` calls
steady. The interval is Welch's, for the difference of the logarithms of the two sides' means over
their processes: it makes no assumption about equal spreads. Each side's variance is that between
its processes, or, if that is smaller, the variance that the steps within the processes leave: the
standard error of means of blocks of consecutive steps, which allows for steps that depend on their
neighbours. So two processes that happen to agree do not feign certainty, and a single process has
an interval, too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.analysis.comparison.student import MeanError, welch_95
from stepscope.analysis.record.summary import summarise_steps
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
