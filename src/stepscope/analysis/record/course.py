"""How step times change over a record: in cycles, and by level shifts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from stepscope.run.step_record import StepRecord
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
