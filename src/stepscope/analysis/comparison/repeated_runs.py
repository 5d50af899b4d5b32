"""Repeated runs of two versions: by how much the versions differ, and how well that is known.

Definitions
    A run counts once, with the median of its steady steps. The steps of one run share its process,
    its placement in memory and its moment on the machine, so they do not show by how much another
    run of the same program differs.
    The change of the step is the ratio of the geometric means of both sides' medians. Its interval
    is Welch's 95% interval for the difference of the mean logarithms, over runs. Parts, kernels and
    operators are compared by the same interval, of their means per step.
    Where both runs of a round trained in turns of a fraction of a second (`trial.alternation`),
    they met the same moments of the machine, and the step is compared within each round: the
    interval is Student's, of the mean over rounds of the difference of the logarithms. So are the
    lower quartiles of the steps. What other programs take makes some steps longer and none shorter,
    so the quicker steps show most clearly what changes all of them: on a virtual machine where
    medians of a round differ by 6.6% (standard deviation), lower quartiles differ by 2.5%.
    Where a side has a single run, the other side's spread stands for both. Where both have one, the
    step's spread is that of at least `LEAST_EARLIER` earlier runs of the same job in the same
    folder (Student's t with their degrees of freedom). Without these it is unknown, and conditions
    are judged with `ASSUMED_SPREAD`: nothing below 32% then counts as more than chance.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.analysis.comparison.side import Side

LEAST_EARLIER = 3
"""Earlier runs of a job from which its spread is estimated."""
ASSUMED_SPREAD = 0.10
"""Relative standard deviation that runs are assumed to have where nothing is known of it. On
machines that do other work, one pair of identical runs in two differs by more than 5%."""
MOST_RUNS = 1000
_POWER_90 = 1.2816
"""The 90th percentile of the normal distribution."""
_CERTAIN = 1e9  # degrees of freedom of a spread that is not estimated

REPEATED, ROUNDS, EARLIER, ASSUMED = "repeated runs", "rounds", "earlier runs", "assumed"
"""What the spread between runs rests on."""


@dataclass(frozen=True)
class RunValues:
    """What one run adds to a comparison.

    Attributes:
        median_ns: Median of its steady steps.
        quartile_ns: Their lower quartile.
        machine: The machine that it ran on; empty where nothing says so.
    """

    path: str
    median_ns: float
    quartile_ns: float
    steps: int
    machine: str = ""


@dataclass(frozen=True)
class Interval:
    """A change as a share of the first side's step, with its 95% interval."""

    share: float
    low_share: float
    high_share: float


@dataclass(frozen=True)
class RunsChange:
    """How two versions differ, judged by their runs.

    Attributes:
        a_ns: Geometric mean of the first's medians.
        spread: Relative standard deviation of the runs of one version, of rounds without what both
            runs of a round have in common.
        basis: What the spread rests on: `REPEATED`, `ROUNDS`, `EARLIER` or `ASSUMED`.
        quartile: The change of the lower quartile of the steps, of rounds; else None.
    """

    a: tuple[RunValues, ...]
    b: tuple[RunValues, ...]
    a_ns: float
    b_ns: float
    step: Interval
    spread: float
    basis: str
    earlier: int = 0
    quartile: Interval | None = None

    @property
    def is_repeated(self) -> bool:
        """Whether a side has several runs."""
        return max(len(self.a), len(self.b)) > 1

    @property
    def machines(self) -> tuple[str, str] | None:
        """The machines of both sides where they differ as the versions do, else None.

        No machine ran both, and one side has runs of a single one, so that the difference between
        machines is no part of what runs differ by.
        """
        a, b = ({run.machine for run in side} for side in (self.a, self.b))
        if "" in a | b or a & b or min(len(a), len(b)) > 1:
            return None
        return ", ".join(sorted(a)), ", ".join(sorted(b))


def values_of(side: Side) -> RunValues:
    """The values of one run."""
    quartile_ns, median_ns = (float(one) for one in np.quantile(side.step_ns, (0.25, 0.5)))
    return RunValues(side.path, median_ns, quartile_ns, len(side.step_ns), side.machine)


def change_of_runs(
    a: Sequence[RunValues],
    b: Sequence[RunValues],
    earlier_ns: Sequence[Sequence[float]] = (),
    *,
    in_rounds: bool = False,
) -> RunsChange:
    """Compare the runs of two versions.

    Args:
        in_rounds: Whether runs at one place of both sequences took turns.
        earlier_ns: Groups of medians of earlier runs, each of one job. Used where both sides have
            one run.
    """
    logarithms = [[math.log(max(1.0, run.median_ns)) for run in runs] for runs in (a, b)]
    means = [statistics.fmean(side) for side in logarithms]
    a_ns, b_ns = (math.exp(mean) for mean in means)
    if in_rounds and len(a) > 1:
        step, spread = _within_rounds([run.median_ns for run in a], [run.median_ns for run in b])
        quicker, _ = _within_rounds([run.quartile_ns for run in a], [run.quartile_ns for run in b])
        return RunsChange(tuple(a), tuple(b), a_ns, b_ns, step, spread, ROUNDS, quartile=quicker)
    basis, earlier = REPEATED, 0
    known = _pooled(logarithms)
    if known is None:
        before = [[math.log(max(1.0, one)) for one in group] for group in earlier_ns]
        enough = [group for group in before if len(group) >= LEAST_EARLIER]
        known, earlier, basis = _pooled(enough), sum(map(len, enough)), EARLIER
    if known is None:
        known, basis = (ASSUMED_SPREAD**2, _CERTAIN), ASSUMED
    step = _interval(means[1] - means[0], _reach(logarithms, known))
    spread = math.sqrt(known[0])
    return RunsChange(tuple(a), tuple(b), a_ns, b_ns, step, spread, basis, earlier)


def _interval(delta: float, reach: float) -> Interval:
    """Of a difference of logarithms."""
    return Interval(*(math.expm1(delta + way * reach) for way in (0, -1, 1)))


def _within_rounds(a_ns: Sequence[float], b_ns: Sequence[float]) -> tuple[Interval, float]:
    """The change from the first to the second of each round, and the spread of one run."""
    pairs = zip(a_ns, b_ns, strict=True)
    differences = [math.log(max(1.0, second) / max(1.0, first)) for first, second in pairs]
    variance = statistics.variance(differences)
    reach = student_95(len(differences) - 1) * math.sqrt(variance / len(differences))
    return _interval(statistics.fmean(differences), reach), math.sqrt(variance / 2)


def noise_of_means(a: Sequence[float], b: Sequence[float]) -> float | None:
    """By how much the means of two sides' runs differ by chance; None with one run each."""
    known = _pooled((a, b))
    return None if known is None else _reach((a, b), known)


def _pooled(groups: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The variance within groups and its degrees of freedom; None without a group of several."""
    freedom = sum(len(group) - 1 for group in groups)
    if freedom < 1:
        return None
    squares = sum((len(g) - 1) * statistics.variance(g) for g in groups if len(g) > 1)
    return squares / freedom, freedom


def _reach(sides: Sequence[Sequence[float]], known: tuple[float, float]) -> float:
    """Half the width of the interval of the difference of the sides' means.

    Args:
        known: The variance of one value, and its degrees of freedom, where a side has one value.
    """
    if min(map(len, sides)) > 1:
        errors = [MeanError(statistics.variance(s) / len(s), len(s) - 1) for s in sides]
        return welch_95(errors[0], errors[1])
    variance, freedom = known
    return student_95(freedom) * math.sqrt(variance * sum(1 / len(side) for side in sides))


def runs_needed(change: RunsChange, limit: float) -> int | None:
    """How many runs a side would show whether the step grew by more than a limit.

    The least number at which, with this spread between runs, 9 of 10 comparisons of identical
    versions have an interval that excludes the limit, and at which the interval of the change found
    here excludes what keeps it from an answer.

    Args:
        limit: The limit, as a share of the step.

    Returns:
        The number; None if it is above `MOST_RUNS`, or the spread is not known.
    """
    if change.basis == ASSUMED:
        return None
    found = change.step.share
    distance = math.log1p(found) if found > limit else math.log1p(limit) - math.log1p(found)
    for runs in range(2, MOST_RUNS + 1):
        error = change.spread * math.sqrt(2 / runs)
        freedom = runs - 1 if change.basis == ROUNDS else 2 * runs - 2
        reach = student_95(freedom) * error
        if reach + _POWER_90 * error <= math.log1p(limit) and reach <= distance:
            return runs
    return None


_STUDENT = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}
"""The 97.5th percentile by degrees of freedom."""
_NORMAL_95 = 1.959964
"""The 97.5th percentile of the normal distribution."""


def student_95(freedom: float) -> float:
    """The 97.5th percentile of Student's t, so that the interval around 0 holds 95%.

    Right to 1% from 4 degrees of freedom on, which are three steps a side. Below, from tables;
    between whole numbers it is interpolated on logarithmic scales, which errs on the wide side.

    Args:
        freedom: Degrees of freedom, at least 1; Welch's need not be whole.
    """
    if freedom < len(_STUDENT):
        below = int(freedom)
        share = math.log(freedom / below) / math.log((below + 1) / below)
        return float(_STUDENT[below] ** (1 - share) * _STUDENT[below + 1] ** share)
    return student_percentile(_NORMAL_95, freedom)


def student_percentile(normal: float, freedom: float, order: int = 3) -> float:
    """The percentile of Student's t at which the normal distribution has `normal`.

    By the expansion of Cornish and Fisher (Abramowitz and Stegun, 26.7.5), which is too low where
    the degrees of freedom are few.

    Args:
        order: Terms of the expansion, up to 3.
    """
    z = normal
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )[:order]
    return math.fsum((z, *(term / freedom**n for n, term in enumerate(terms, start=1))))


@dataclass(frozen=True)
class MeanError:
    """How well a mean is known.

    Attributes:
        variance: The square of its standard error.
        freedom: Degrees of freedom of that estimate.
    """

    variance: float
    freedom: float


def welch_95(first: MeanError, second: MeanError) -> float:
    """Half the width of Welch's 95% interval of the difference of two independent means."""
    variance = first.variance + second.variance
    if variance == 0:
        return 0.0
    parts = [(one.variance / variance) ** 2 / one.freedom for one in (first, second)]
    return student_95(max(1.0, 1 / math.fsum(parts))) * math.sqrt(variance)
