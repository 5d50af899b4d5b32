"""Compares the losses of a trial with those of the unchanged script.

Two curves differ by the root mean square of their relative differences, backward pass by backward
pass, over as many as both have. The script itself is run several times: if its own runs differ,
because it does not fix its seeds or its sums round differently each time, that is the noise.

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

from stepscope.analysis.comparison.student import student_95
from stepscope.run.trials import (
    CHANGED,
    CLOSE,
    REDRAWN,
    SAME,
    UNKNOWN,
    WITHIN_NOISE,
    LossRecord,
)
from stepscope.trial.measure import BLOCKS, means_of_blocks, standard_error

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
        total += _relative(a, b) ** 2
    return math.sqrt(total / number)


def _relative(first: float, second: float) -> float:
    scale = max(abs(first), abs(second))
    return (first - second) / scale if scale else 0.0


def _same_on_average(
    trial: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]], number: int
) -> bool:
    """Whether the trial's mean losses are neither higher nor lower, as far as is known."""
    if number < BLOCKS:
        return False
    means = [_mean_curve(curves, number) for curves in (trial, baseline)]
    differences = [_relative(a, b) for a, b in zip(*means, strict=True)]
    if not all(map(math.isfinite, differences)):
        return False
    blocks = means_of_blocks(differences)
    reach = student_95(len(blocks) - 1) * standard_error(blocks)
    return abs(statistics.fmean(blocks)) <= reach <= _NARROW


def _mean_curve(curves: Sequence[Sequence[float]], number: int) -> list[float]:
    return [statistics.fmean(curve[step] for curve in curves) for step in range(number)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
