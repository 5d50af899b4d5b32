"""Steps that are slow at one distance, because they do something that the others do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SLOWEST = 20
"""How many of the slowest steps tell the distances that are looked at."""
_LEAST_TIMES = 3
_MOSTLY = 0.8
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
        is_regular = len(at) >= max(_LEAST_TIMES, _MOSTLY * due)
        if is_regular and cost_ns >= _EXPLAINED * sum(slow.values()):
            return StepCycle(distance, place, at)
    return None
