"""How a time changes over the steps, beyond chance: every so many steps, or from step to step.

Definitions
    Every Nth step: of all distances, the shortest first, each with the beginning at which steps
    rank longest. A step is long if it lies beyond the middle between the median of the steps at
    that distance and the median of all others. At least four fifths of the steps at that distance
    must be long, and at least four fifths of all long ones be among them. That must be beyond
    chance: as many long steps, put anywhere, fall as well on any of the distances and beginnings in
    fewer than one of a thousand cases (hypergeometric).
    From step to step: the times have an order by Kendall's test (one in a thousand), and rise by
    the median slope of all pairs (Theil and Sen), over all steps, by at least half of their median.
    From one step on: the same, but two levels, divided at one step, lie nearer to the times than
    that line.

Single outliers hardly count in any of these. Long records are looked at in blocks of steps, by
their medians.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from stepscope.run.figures import duration, first_of, ordinal

_CHANCE = 0.001
_NORMAL_LIMIT = 3.29
"""What a normal variable is away from 0 in one of a thousand cases."""
_SLOWEST = 20
_MOST_TRIED = 64
"""Distances that are looked at: those up to this, and those between the longest steps."""
_LEAST_TIMES = 3
_MOSTLY = 0.8
_NEARLY_ALL = 0.9
_LITTLE = 0.25
_MOST_BLOCKS = 96
_LEAST_RISE = 0.5
_FEWEST_STEPS = 6
"""Fewer cannot be in an order beyond chance."""
_MOST_NAMED = 5


@dataclass(frozen=True)
class EveryNth:
    """A time that is long every so many steps.

    Attributes:
        long_ns: Median in the steps at that distance.
        others_ns: Median in all others.
    """

    every: int
    steps: tuple[int, ...]
    long_ns: int
    others_ns: int

    @property
    def only(self) -> bool:
        """Whether the others have next to nothing of the time."""
        return self.others_ns < _LITTLE * self.long_ns

    @property
    def text(self) -> str:
        """When, as "in every 3rd step"."""
        return f"{'' if self.only else 'most '}in every {ordinal(self.every)} step"

    @property
    def evidence(self) -> str:
        """When and how long."""
        return (
            f"{self.text} ({first_of(self.steps, _MOST_NAMED)}): "
            f"{duration(self.long_ns)} in these, {duration(self.others_ns)} in others"
        )


@dataclass(frozen=True)
class Rising:
    """A time that grows from step to step.

    Attributes:
        per_step_ns: By how much, as a median.
        first_ns: Median over the first fifth of the steps, at least three.
        last_ns: The same over the last.
    """

    per_step_ns: int
    first_ns: int
    last_ns: int

    @property
    def text(self) -> str:
        """How."""
        return "more from step to step"

    @property
    def evidence(self) -> str:
        """By how much, and from what to what."""
        return (
            f"by {duration(self.per_step_ns)} a step: {duration(self.first_ns)} in the first "
            f"steps, {duration(self.last_ns)} in the last"
        )


@dataclass(frozen=True)
class FromOneStep:
    """A time that is longer from one step on.

    Attributes:
        step: The first step in which it is.
    """

    step: int
    before_ns: int
    after_ns: int

    @property
    def text(self) -> str:
        """Since when."""
        return f"since about step {self.step}"

    @property
    def evidence(self) -> str:
        """Since when, and from what to what."""
        return f"{self.text}: {duration(self.before_ns)} before, {duration(self.after_ns)} then"


@dataclass(frozen=True)
class InSomeSteps:
    """A time that is nearly all in few steps, at no distance beyond chance.

    Attributes:
        steps: Those with nearly all of it.
    """

    steps: tuple[int, ...]
    of: int

    @property
    def text(self) -> str:
        """In how many."""
        return f"in {len(self.steps)} of {self.of} steps"

    @property
    def evidence(self) -> str:
        """In which steps."""
        return f"{self.text}: {first_of(self.steps, _MOST_NAMED)}"


Course = EveryNth | Rising | FromOneStep | InSomeSteps


def course_of(steps: Sequence[int], times_ns: Sequence[int], least_ns: float) -> Course | None:
    """How times change over the steps; None where nothing is beyond chance.

    Args:
        steps: Numbers of the steps, in order; some may be missing.
        least_ns: The smallest change to look for.
    """
    nth, rising = every_nth(steps, times_ns, least_ns), _rising(steps, times_ns, least_ns)
    if nth is None or rising is None:
        return nth or rising
    # What costs more: a mean over all steps.
    of_nth_ns = (nth.long_ns - nth.others_ns) / nth.every
    if isinstance(rising, Rising):
        return rising if (rising.last_ns - rising.first_ns) / 2 > of_nth_ns else nth
    later = sum(step >= rising.step for step in steps) / len(steps)
    return rising if later * (rising.after_ns - rising.before_ns) > of_nth_ns else nth


def in_some_steps(steps: Sequence[int], times_ns: Sequence[int]) -> InSomeSteps | None:
    """The steps with nearly all of a time, if that is fewer than half of at least three."""
    order = sorted(zip(times_ns, steps, strict=True), reverse=True)
    left_ns, found = (1 - _NEARLY_ALL) * sum(times_ns), []
    rest_ns = sum(times_ns)
    for ns, step in order:
        if rest_ns <= left_ns:
            break
        found.append(step)
        rest_ns -= ns
    if len(steps) < _LEAST_TIMES or not found or 2 * len(found) >= len(steps):
        return None
    return InSomeSteps(tuple(sorted(found)), len(steps))


def every_nth(steps: Sequence[int], times_ns: Sequence[int], least_ns: float) -> EveryNth | None:
    """At which distance times are long, beyond chance; None at none.

    Args:
        steps: Numbers of the steps, in order; some may be missing.
        least_ns: By how much the long ones must exceed the others.
    """
    count = len(steps)
    if count < 2 * _LEAST_TIMES or math.gcd(*(b - a for a, b in pairwise(steps))) > 1:
        return None  # of every second step, nobody knows whether the others are long
    order = sorted(range(count), key=times_ns.__getitem__)
    slowest = sorted(steps[place] for place in order[-_SLOWEST:])
    distances = {later - step for step, later in pairwise(slowest)}
    distances |= set(range(2, min(count // _LEAST_TIMES, _MOST_TRIED) + 1))
    rank = {steps[place]: number for number, place in enumerate(order)}
    for distance in sorted(distances - {1}):
        beginning = _beginning(distance, rank)
        due = [step % distance == beginning for step in steps]
        at = [ns for ns, is_due in zip(times_ns, due, strict=True) if is_due]
        others = [ns for ns, is_due in zip(times_ns, due, strict=True) if not is_due]
        if len(at) < _LEAST_TIMES or not others:
            continue
        long_ns, others_ns = statistics.median(at), statistics.median(others)
        if long_ns - others_ns < max(1, least_ns):
            continue
        middle = (long_ns + others_ns) / 2
        found = tuple(
            step
            for step, ns, is_due in zip(steps, times_ns, due, strict=True)
            if is_due and ns > middle
        )
        long_steps = sum(ns > middle for ns in times_ns)
        is_regular = len(found) >= _MOSTLY * max(len(at), long_steps)
        if not is_regular:
            continue
        if _by_chance(count, long_steps, len(at) + long_steps - 2 * len(found)) < _CHANCE:
            return EveryNth(distance, found, round(long_ns), round(others_ns))
    return None


def _beginning(distance: int, rank: Mapping[int, int]) -> int:
    """At which remainder of a distance steps are longest, by the mean of their ranks."""
    sums, counts = [0] * distance, [0] * distance
    for step, number in rank.items():
        sums[step % distance] += number
        counts[step % distance] += 1
    known = (place for place in range(distance) if counts[place])
    return max(known, key=lambda place: sums[place] / counts[place])


def _by_chance(count: int, long_steps: int, wrong: int) -> float:
    """At most how probable it is that long steps come as regularly by chance.

    Args:
        wrong: Steps that are long and not due, or due and not long.
    """
    probability = 0.0
    for distance in range(2, count // _LEAST_TIMES + 1):
        more = count % distance  # so many beginnings have a step more
        for due, beginnings in (
            (count // distance, distance - more),
            (-(-count // distance), more),
        ):
            least = max(0, -(-(due + long_steps - wrong) // 2))
            ways = sum(
                math.comb(due, hits) * math.comb(count - due, long_steps - hits)
                for hits in range(least, min(due, long_steps) + 1)
            )
            probability += beginnings * ways / math.comb(count, long_steps)
    return probability


def _rising(
    steps: Sequence[int], times_ns: Sequence[int], least_ns: float
) -> Rising | FromOneStep | None:
    if len(steps) < _FEWEST_STEPS:
        return None
    places, blocks = _in_blocks(steps, times_ns)
    pairs = list(combinations(range(len(blocks)), 2))
    order = sum((blocks[b] > blocks[a]) - (blocks[b] < blocks[a]) for a, b in pairs)
    count = len(blocks)
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    if order - 1 < _NORMAL_LIMIT * deviation:
        return None
    slope = statistics.median((blocks[b] - blocks[a]) / (places[b] - places[a]) for a, b in pairs)
    rise_ns = slope * (places[-1] - places[0])
    parts = [(blocks[:at], blocks[at:]) for at in range(2, count - 1)]
    two_levels = [_away(before) + _away(after) for before, after in parts]
    along = [ns - slope * place for place, ns in zip(places, blocks, strict=True)]
    best = min(range(len(two_levels)), key=two_levels.__getitem__)
    if two_levels[best] < _away(along):
        before_ns, after_ns = (statistics.median(part) for part in parts[best])
        if after_ns - before_ns < max(1, least_ns, _LEAST_RISE * before_ns):
            return None
        at = min(steps, key=lambda step: abs(step - places[best + 2]))
        return FromOneStep(at, round(before_ns), round(after_ns))
    if rise_ns < max(1, least_ns, _LEAST_RISE * statistics.median(blocks)):
        return None
    some = max(3, len(times_ns) // 5)
    first_ns, last_ns = statistics.median(times_ns[:some]), statistics.median(times_ns[-some:])
    return Rising(round(slope), round(first_ns), round(last_ns))


def _away(values: Sequence[float]) -> float:
    """How far values are from their median, in all."""
    middle = statistics.median(values)
    return sum(abs(value - middle) for value in values)


def _in_blocks(steps: Sequence[int], times_ns: Sequence[int]) -> tuple[list[float], list[float]]:
    """Places and medians of consecutive blocks of steps, of single steps where they are few."""
    count = min(len(steps), _MOST_BLOCKS)
    borders = [block * len(steps) // count for block in range(count + 1)]
    return (
        [statistics.median(steps[a:b]) for a, b in pairwise(borders)],
        [statistics.median(times_ns[a:b]) for a, b in pairwise(borders)],
    )
