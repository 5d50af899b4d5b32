"""Which steps are no example of the others: slow first ones, a single stall, parts of a round.

What a step waits for its input counts as the median wait when steps are judged: waits for a loader
come in bursts, and are part of the steady state.
"""

from __future__ import annotations

import numpy as np

from stepscope.trace.arrays.intervals import Int64Array

START_UP_FACTOR = 2.0
"""A step at the beginning is slow if it takes more than so many times the median of the later."""
FIRST_FACTOR = 1.25
"""The first step alone is slow if it takes more than so many times the longest of the others."""
SLOW_FACTOR = 2.0
"""A steady step is slow if it takes more than so many times the median."""
_OTHERS = 4
"""How many others it takes to tell."""
STALL_FACTOR = 3.0
"""A step stalls if it takes more than so many times the median, and is the only one that does."""
LEAST_STEPS = 3
"""Of fewer steps none is called a stall."""
_NOTABLE_WAITS = 0.05
"""Share of the steps that waits for input take at least where rounds of batches matter."""
_WAITS_OF_ROUND = 0.25
"""Of the longest wait, what a step waits at least if it waits for the next round of batches."""
_BACKLOG = 0.25
"""Of a step: what a device's backlog shrinks by at least while its steps are no steady ones."""
_MUCH = 0.5
"""Of a step, what it waits for its input if its wait is why it is slow."""
_ALIKE = 0.1
"""What a later step must wait for its input, of the first one's wait, to make waiting usual; and
how much times that come again may differ, of the longest."""
_LONGEST_ROUND = 64
"""Steps after which a training does more again, at most."""


def slow_first_steps(durations: Int64Array, waits: Int64Array) -> int:
    """How many steps at the beginning take more than twice the median of the others.

    At most half of them, and none if a later step is as slow as they are: that comes again. If the
    first step alone waits for its input, its wait counts. What the first step takes beyond the
    longest of the others tells as well: recorders start in it. Steps right after slow ones belong
    to them if they wait for the loader's first batches, and none of many later ones waits.
    """
    if len(durations) < 2:
        return 0
    judged = _without_bursts(durations, waits)
    if (waits[1:] - np.median(waits)).max() <= _ALIKE * waits[0]:
        judged[0] = durations[0]
    first = 0
    # The median of the others is no less than the least of them, which is known for all at once.
    least_before = np.minimum.accumulate(judged)
    least_after = np.minimum.accumulate(judged[::-1])[::-1]
    half = len(judged) // 2
    may_be = least_before[:half] > START_UP_FACTOR * least_after[1 : half + 1]
    for count in (np.flatnonzero(may_be) + 1).tolist():
        if (judged[:count] > START_UP_FACTOR * np.median(judged[count:])).all():
            first = count
    if first and judged[:first].max() <= FIRST_FACTOR * judged[first:].max():
        first = 0
    if not first and len(judged) > _OTHERS and judged[0] > FIRST_FACTOR * judged[1:].max():
        first = 1
    if first == 1 and _comes_again(durations, waits) and not _first_waits(durations, waits):
        return 0
    return first + _first_waits(durations[first:], waits[first:]) if first else 0


def is_only_first(waits: Int64Array) -> bool:
    """Whether the first step alone waits, and no other for more than a tenth of that."""
    return bool(waits[0] > 0 and waits[1:].max(initial=0) <= _ALIKE * waits[0])


def _first_waits(durations: Int64Array, waits: Int64Array) -> int:
    """How many steps at the beginning hold all waits, if those are a third of them at most."""
    longest_ns = waits.max(initial=0)
    if waits.sum() < _NOTABLE_WAITS * durations.sum():
        return 0
    until = len(waits) - int(np.argmax(waits[::-1] > _ALIKE * longest_ns))
    others = len(waits) - until
    return until if others >= max(_OTHERS, 2 * until) else 0


def _comes_again(durations: Int64Array, waits: Int64Array) -> bool:
    """Whether a later step takes as long as the first one and waits for its input as it does."""
    waits_alike = (waits[1:] >= _MUCH * waits[0]) & (_MUCH * waits[1:] <= waits[0])
    is_as_long = FIRST_FACTOR * durations[1:] >= durations[0]
    return bool(waits[0] >= _MUCH * durations[0] and (waits_alike & is_as_long).any())


def single_stall(durations: Int64Array, waits: Int64Array) -> int | None:
    """The place of the one step that takes more than three times the median; None for none.

    Several such steps are a habit of the training: no stall.

    Args:
        durations: Durations of steps, in order, without slow ones at the beginning.
    """
    if len(durations) < LEAST_STEPS:
        return None
    judged = _without_bursts(durations, waits)
    slow = np.nonzero(judged > STALL_FACTOR * np.median(judged))[0]
    return int(slow[0]) if len(slow) == 1 else None


def rounds_of_batches(durations: Int64Array, waits: Int64Array) -> tuple[int, int]:
    """After how many steps waits for input come again: workers finish their batches in turns.

    Two workers that begin together have two batches ready together: every other step waits for
    both. Only whole rounds tell the time of a step then. Steps that wait for nothing, and are more
    than a round leaves without a wait, had batches that were made before: the training, or the
    recorder, held the main thread up. A first round that waits far longer than the others was not
    begun while earlier steps ran: workers started then.

    Args:
        durations: Durations of steps that follow one another.

    Returns:
        Steps of a round: 1 if all wait alike, if waits are few, or if the steps show no full round.
        How many steps at the beginning had batches that were made before.
    """
    if not len(waits) or waits.sum() < _NOTABLE_WAITS * durations.sum():
        return 1, 0
    is_long = waits > _WAITS_OF_ROUND * waits.max()
    if is_long.all():
        return _period(waits, _WAITS_OF_ROUND), 0
    ahead = int(np.argmax(is_long))
    is_long = is_long[ahead:]
    rounds = round_starts(waits[ahead:])
    if len(rounds) < 2:
        return 1, 0
    length = int(rounds[1] - rounds[0])
    comes_again = bool((is_long[length:] == is_long[:-length]).all())
    if not comes_again or len(is_long) < len(waits) // 2:
        return 1, 0
    in_rounds = np.add.reduceat(waits[ahead:], rounds)
    if len(rounds) > 2 and in_rounds[0] > START_UP_FACTOR * np.median(in_rounds[1:]):
        return length, ahead + length
    return length, ahead if ahead >= length else 0


def rounds_of_work(host_ns: Int64Array) -> int:
    """After how many steps the host's time comes again, where it does more in some: in every other.

    Args:
        host_ns: What steps that follow one another take on the host.

    Returns:
        Steps of a round: 1 if all are alike, or no two rounds are.
    """
    longest_ns = host_ns.max(initial=0)
    if longest_ns <= FIRST_FACTOR * host_ns.min(initial=longest_ns):
        return 1
    return _period(host_ns, _ALIKE, 2, _LONGEST_ROUND)


def _period(times: Int64Array, alike: float, least: int = 1, most: int | None = None) -> int:
    """After how many steps all times come again; 1 if they do not within the steps.

    Args:
        alike: How far apart times that come again may be, of the longest.
        most: None: as many as come again at all.
    """
    half = len(times) // 2
    for length in range(least, (half if most is None else min(half, most)) + 1):
        if np.abs(times[length:] - times[:-length]).max() <= alike * times.max():
            return length
    return 1


def settling_steps(host_ns: Int64Array, device_ns: Int64Array) -> int:
    """How many steps at the beginning the devices still had a backlog that they lose later.

    Where the host waits for its input, the devices wait as well, once they have done what it
    launched while it had batches in store. Until then their steps are shorter than the host's, and
    shorter than later ones.

    Args:
        host_ns: Durations of steps that follow one another, on the host.
        device_ns: The same on the devices.
    """
    lost_later_ns = np.cumsum((host_ns - device_ns)[::-1])[::-1]
    has_backlog = lost_later_ns > _BACKLOG * device_ns
    return int(np.argmin(has_backlog)) if not has_backlog.all() else 0


def round_starts(waits: Int64Array) -> Int64Array:
    """The places of waits for the first batch of a round: long ones after one that is not.

    If all are long, a round is as many as they come again after.
    """
    is_long = waits > _WAITS_OF_ROUND * waits.max(initial=0)
    if is_long.all():
        return np.arange(0, len(waits), _period(waits, _WAITS_OF_ROUND))
    return np.flatnonzero(is_long & ~np.insert(is_long[:-1], 0, False))


def _without_bursts(durations: Int64Array, waits: Int64Array) -> Int64Array:
    judged: Int64Array = durations - np.maximum(waits - int(np.median(waits)), 0)
    return judged
