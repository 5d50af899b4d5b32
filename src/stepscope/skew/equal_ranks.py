"""How likely it is that equal ranks would look as if some of them came late: somebody always does.

Definitions
    Equal ranks differ by chance only: in each step any of them may come last. Steps in a row are
    alike (a busy machine stays busy), so they count as fewer: their number over the correlation
    time (1 + ρ) / (1 - ρ), where ρ is the correlation of neighbouring steps. It is taken from the
    ranks that are not late, by whether each lies before or behind its usual place.
    A rank is tested three ways against the others of its step:
    * by order: it lies behind the middle of all ranks in more steps than one of two;
    * by being last: it is last in more steps than one of as many as there are ranks. Steps in which
      several come last together, or it is in the middle, do not count;
    * by size: it is behind the mean of the ranks that are not late by more than these differ from
      each other and over the steps, or it itself over the steps (Student's t). That tells a rank in
      few steps of a steady job. Of ten steps or more, the one in which it is furthest behind does
      not count: one long pause makes no rank late, and does not excuse one either.
    Of fewer than ten steps the correlation cannot be told, so only size counts.
    The chance is the least of the three, times their number and that of the ranks, any of which
    might have been picked. Each rank of a set must be late by itself: then it is no advantage to
    look at many sets.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from itertools import pairwise

LIMIT = 0.005
"""Up to which chance ranks are accused."""
_TESTS = 3
_FEWEST_STEPS = 3
SEVERAL_STEPS = 10
"""From which number on the order of the ranks tells something."""
_MOST_MEMORY = 0.9
_NOISE = 1
"""Standard errors up to which a correlation is none."""
_MOST_TERMS = 500
_EXACT = 1e-12


def chance_of(positions: Sequence[Sequence[float]], place: int, late: Collection[int]) -> float:
    """How likely any of equal ranks is to come as late as this one.

    Args:
        positions: Of each step, that of each rank; the largest comes last.
        late: The places of all ranks that seem late, this one among them.

    Returns:
        At most 1; 1 with fewer than three steps, and if all ranks seem late.
    """
    count = len(positions[0]) if positions else 0
    others = [other for other in range(count) if other not in late]
    if not others or len(positions) < _FEWEST_STEPS:
        return 1.0
    # Times since the epoch are too large for exact halves; their differences are not.
    rows = [[position - row[0] for position in row] for row in positions]
    one = _chance_by_size(rows, place, others)
    if len(rows) >= SEVERAL_STEPS:
        one = min(one, *_chances_by_order(rows, place, others))
    return min(1.0, _TESTS * count * one)


def _chances_by_order(
    rows: Sequence[Sequence[float]], place: int, others: Sequence[int]
) -> tuple[float, float]:
    """How likely one is to lie behind the middle, and to be last, as often."""
    behind, last = [], []
    for row in rows:
        away, most = row[place] - statistics.median(row), max(row)
        if away:
            behind.append(float(away > 0))
        if row.count(most) == 1:
            last.append(float(row[place] == most))
    alike = correlation_time(_memory(rows, others))
    return _binomial_tail(behind, 0.5, alike), _binomial_tail(last, 1 / len(rows[0]), alike)


def _chance_by_size(rows: Sequence[Sequence[float]], place: int, others: Sequence[int]) -> float:
    """How likely one is to be as far behind the others' mean."""
    means = [statistics.fmean(row[other] for other in others) for row in rows]
    ahead = [row[place] - mean for row, mean in zip(rows, means, strict=True)]
    is_several = len(rows) >= SEVERAL_STEPS
    if is_several:
        furthest = ahead.index(max(ahead))
        rows, means, ahead = (
            [*values[:furthest], *values[furthest + 1 :]] for values in (rows, means, ahead)
        )
    steps = len(rows)
    of_others = [
        [row[other] - mean for row, mean in zip(rows, means, strict=True)] for other in others
    ]
    alike = correlation_time(_memory(rows, others)) if is_several else 1.0
    own = statistics.variance(ahead)
    between = 0.0
    if len(others) > 1:
        inside = statistics.fmean(map(statistics.variance, of_others))
        own = max(own, inside * len(others) / (len(others) - 1))
        between = statistics.variance(list(map(statistics.fmean, of_others)))
    variance = own * min(alike, steps) / steps + between
    mean = statistics.fmean(ahead)
    if mean <= 0:
        return 1.0
    return student_tail(mean / math.sqrt(variance), len(rows[0]) + steps - 3) if variance else 0.0


def _memory(rows: Sequence[Sequence[float]], others: Sequence[int]) -> float:
    """The correlation of neighbouring steps of the ranks that are not late."""
    if len(others) == 1:
        others = range(len(rows[0]))
    same = whole = 0
    middles = [statistics.median(row) for row in rows]
    for other in others:
        away = [row[other] - middle for row, middle in zip(rows, middles, strict=True)]
        usual = statistics.median(away)
        signs = [(one > usual) - (one < usual) for one in away]
        same += sum(a * b for a, b in pairwise(signs))
        whole += sum(abs(a * b) for a, b in pairwise(signs))
    found = same / whole if whole else 0.0
    if found <= _NOISE / math.sqrt(max(1, whole)):
        return 0.0
    # A series is less like itself around its own middle than around the true one.
    found += (1 + 3 * found) / len(rows)
    return math.sin(math.pi / 2 * min(found, _MOST_MEMORY))


def correlation_time(memory: float) -> float:
    """How many steps in a row tell as much as one that has nothing to do with the others."""
    return (1 + memory) / (1 - memory)


def _binomial_tail(events: Sequence[float], usual: float, alike: float) -> float:
    """How likely as many events are, of which each has the usual chance."""
    if not events:
        return 1.0
    cases = max(1.0, len(events) / alike)
    happened = statistics.fmean(events) * cases
    return 1.0 if happened <= usual * cases else beta(happened, cases - happened + 1, usual)


def student_tail(t: float, freedom: float) -> float:
    """How likely Student's t is to exceed a positive value."""
    return beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2


def beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
        + a * math.log(x) + b * math.log1p(-x)
    ) / a  # fmt: skip
    lower = 1 / (1 - (a + b) * x / (a + 1))
    upper, value = 1.0, lower
    for m in range(1, _MOST_TERMS):
        for part in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = 1 / (1 + part * lower)
            upper = 1 + part / upper
            value *= lower * upper
        if abs(lower * upper - 1) < _EXACT:
            break
    return front * value
