"""Whether a rank has more of a cause than chance gives it: somebody is always last.

Definitions
    Excess of a rank in a step: what its work takes beyond the usual (`usual.py`), for one cause.
    A rank has too much of a cause if all of this holds.
    Its excess over all steps is at least three times that of the median other rank: where all have
    as much, nobody is at fault in particular.
    It recurs: the second most of a step is at least a quarter of the most.
    It is steady or great. Steady: in each step the excess is compared with the mean of the others
    in that step, so that what disturbs all does not count; the mean difference is beyond what
    Student's t allows in one of a thousand cases, over all ranks that might be picked; or beyond
    what equal ranks show (`skew.equal_ranks`). Great: the
    second most of a step is at least three times the most that any other rank has in any step. A
    process that loses its CPU now and then, as on a shared machine, is neither.
    Of two steps the first two conditions are enough, of one the first: more cannot be checked.
    One odd step must not excuse a rank that is late in all others, whether it paused in that step
    or others did: of at least four steps, it is enough if all this holds without the one in which
    its difference to the others is at least three times as far from the median as in any other, or
    if it has a quarter of its most in all, without the one in which another rank has at least three
    times as much as any other rank has in any other step; and what remains is notable. Of three
    steps the latter alone counts, and what remains must be three times as great.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from stepscope.analysis.comparison.repeated_runs import student_percentile
from stepscope.skew import equal_ranks

_STANDS_OUT = 3
_FEWEST_STEPS = 3
_COMES_BACK = 0.25
_ORDER = 2
"""Terms of the expansion for Student's t. A third would ask more of the shortest recordings."""
_CHANCE = 0.001
_NORMAL_LIMIT = NormalDist().inv_cdf(1 - _CHANCE)
"""What a normal variable exceeds in one of a thousand cases."""


def is_beyond_chance(excess_ns: npt.NDArray[np.float64], rank: int, least_ns: float = 0.0) -> bool:
    """Whether a rank has too much of a cause.

    Args:
        excess_ns: By step (rows) and rank (columns).
        rank: The column of the rank.
        least_ns: What a rank must have in a step on average without its oddest one, where only
            the rest shows that it has too much.
    """
    if _is_beyond_chance(excess_ns, rank):
        return True
    if len(excess_ns) < _FEWEST_STEPS or excess_ns.shape[1] < 2:
        return False
    others = np.delete(excess_ns, rank, axis=1)
    ahead = excess_ns[:, rank] - others.mean(axis=1)
    least, most = excess_ns[:, rank].min(), excess_ns[:, rank].max()
    has_few = len(excess_ns) == _FEWEST_STEPS
    found = [] if has_few else [np.abs(ahead - np.median(ahead))]
    found += [others.max(axis=1)] if least >= _COMES_BACK * most else []
    for unusual in found:
        second, most = np.sort(unusual)[-2:]
        if most < _STANDS_OUT * second:
            continue
        rest = np.delete(excess_ns, int(unusual.argmax()), axis=0)
        is_enough = _is_great(rest, rank, 3) if has_few else _is_beyond_chance(rest, rank)
        if rest[:, rank].mean() >= least_ns and is_enough:
            return True
    return False


def _is_great(excess_ns: npt.NDArray[np.float64], rank: int, times: float = 1) -> bool:
    second = float(np.sort(excess_ns[:, rank])[-2])
    most = float(np.delete(excess_ns, rank, axis=1).max())
    return second >= times * _STANDS_OUT * most


def _is_beyond_chance(excess_ns: npt.NDArray[np.float64], rank: int) -> bool:
    own = excess_ns[:, rank]
    others = np.delete(excess_ns, rank, axis=1)
    if not others.size:
        return True
    if own.sum() < _STANDS_OUT * np.median(others.sum(axis=0)):
        return False
    if len(own) < 2:
        return True
    second, most = np.sort(own)[-2:]
    if second < _COMES_BACK * most:
        return False
    if len(own) < _FEWEST_STEPS:
        return True
    if _is_great(excess_ns, rank):
        return True
    if _is_steady(own - others.mean(axis=1), excess_ns.shape[1]):
        return True
    return equal_ranks.chance_of(excess_ns.tolist(), rank, [rank]) <= equal_ranks.LIMIT


def _is_steady(difference: npt.NDArray[np.float64], ranks: int) -> bool:
    steps = len(difference)
    error = float(difference.std(ddof=1)) / math.sqrt(steps)
    limit = NormalDist().inv_cdf(1 - _CHANCE / ranks)
    return float(difference.mean()) > student_percentile(limit, steps - 1, _ORDER) * error


def is_more_often(events: int, cases: int, other_events: int, other_cases: int) -> bool:
    """Whether something happens more often here than elsewhere, beyond one chance in a thousand.

    By the test of two proportions; `cases` is at least 1. Where `other_cases` is 0, nothing
    contradicts it.
    """
    if not other_cases:
        return True
    pooled = (events + other_events) / (cases + other_cases)
    error = math.sqrt(pooled * (1 - pooled) * (1 / cases + 1 / other_cases))
    return events / cases - other_events / other_cases > _NORMAL_LIMIT * error
