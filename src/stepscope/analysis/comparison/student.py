"""Percentiles of Student's t, and Welch's interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        freedom: Degrees of freedom, above 0.
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
