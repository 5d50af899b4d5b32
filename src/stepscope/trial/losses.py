"""Compares the losses of a trial with those of the script as it is.

Two curves differ by the root mean square of their relative differences, backward pass by backward
pass, over as many as both have. The script itself is run several times: if its own runs differ,
because it does not fix its seeds or its sums round differently each time, that is the noise.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from stepscope.run.trials import CHANGED, CLOSE, SAME, UNKNOWN, WITHIN_NOISE, LossRecord

ROUNDING = 0.01
"""Curves that differ by less are close: other kernels and other precision round differently."""
_NOISE_FACTOR = 1.5
_LEAST = 3


def compare_losses(
    trial: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]]
) -> LossRecord:
    """Compare the losses of a trial's processes with those of the baseline's.

    Args:
        trial: The losses of each process of the trial.
        baseline: The losses of each process of the script as it is.
    """
    ours = [losses for losses in trial if len(losses) >= _LEAST]
    theirs = [losses for losses in baseline if len(losses) >= _LEAST]
    if not ours or not theirs:
        return LossRecord(UNKNOWN)
    compared = min(map(len, (*ours, *theirs)))
    difference = min(_distance(a, b, compared) for a in ours for b in theirs)
    pairs = itertools.combinations(theirs, 2)
    noise = max((_distance(a, b, compared) for a, b in pairs), default=None)
    return LossRecord(_verdict(difference, noise), _finite(difference), _finite(noise), compared)


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
        scale = max(abs(a), abs(b))
        total += ((a - b) / scale) ** 2 if scale else 0.0
    return math.sqrt(total / number)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
