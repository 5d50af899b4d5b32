"""One pass over the events of a thread that tells which cause each moment belongs to.

Every event has a cause, a small number; a moment belongs to the least of the causes of the events
that it lies in. Compiled loops: for few events sets of intervals do the same
(`events.claims_by_sets`), and loading the loops would cost more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import jit

_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class Stretches:
    """Time divided by cause: stretches in order that do not overlap.

    Two stretches that touch have different causes.
    """

    starts: Int64Array
    ends: Int64Array
    causes: npt.NDArray[np.int8]

    def by_cause(self, number: int) -> list[Intervals]:
        """The moments of each cause from 0 to `number` - 1."""
        found = []
        counts = np.bincount(self.causes, minlength=number)
        for cause in range(number):
            if not counts[cause]:
                found.append(intervals.empty())
                continue
            mine = self.causes == cause
            found.append(Intervals(self.starts[mine], self.ends[mine]))
        return found

    def divide(self, starts: Int64Array, ends: Int64Array, number: int) -> Int64Array:
        """Time per cause in each window: one row per cause, one column per window.

        Args:
            starts: Starts of the windows, sorted.
            ends: Their ends, sorted too: windows follow one another.
            number: How many causes there are.
        """
        divided = np.zeros((number, len(starts)), np.int64)
        if not len(starts):
            return divided
        low = np.searchsorted(self.ends, starts[0], side="right")
        near = slice(low, np.searchsorted(self.starts, ends[-1]))
        jit(divide_by_loop)(
            self.starts[near],
            self.ends[near],
            self.causes[near],
            np.ascontiguousarray(starts),
            np.ascontiguousarray(ends),
            divided.reshape(-1),
        )
        return divided


def find_stretches(
    starts: Int64Array, ends: Int64Array, causes: npt.NDArray[np.int8], number: int
) -> Stretches:
    """Divide the time of a thread.

    Args:
        starts: Starts of its events, sorted.
        causes: Cause of each event, from 0 to `number` - 1.
        number: How many causes there are.
    """
    # A stretch ends where an event begins, or where one ends.
    most = 2 * len(starts) + 1
    first, last = np.empty(most, np.int64), np.empty(most, np.int64)
    cause = np.empty(most, np.int8)
    reach = np.full(number, _FIRST, np.int64)
    count = jit(sweep_by_loop)(starts, ends, causes, reach, first, last, cause)
    for column in (first, last, cause):
        column.resize(count, refcheck=False)  # what was not filled in is given back
    return Stretches(first, last, cause)


def sweep_by_loop(
    start: Int64Array,
    end: Int64Array,
    cause: npt.NDArray[np.int8],
    reach: Written[np.int64],
    starts: Written[np.int64],
    ends: Written[np.int64],
    causes: Written[np.int8],
) -> int:
    """Fill in the stretches and give their number; `reach` is how far each cause is known to go.

    Every cause is at least 0 and less than the length of `reach`. A stretch ends where an event
    begins or ends, each at most once, so there are no more than twice as many as events.
    """
    count = 0
    number = len(start)
    for row in range(number + 1):
        # Up to the next event nothing changes but by what ends.
        until = start[row] if row < number else _LAST
        now = start[row - 1] if row > 0 else until
        while now < until:
            active = 0
            while active < len(reach) and reach[active] <= now:
                active += 1
            if active == len(reach):
                break
            last = min(until, reach[active])
            if count > 0 and causes[count - 1] == active and ends[count - 1] == now:
                ends[count - 1] = last
            else:
                starts[count], ends[count], causes[count] = now, last, active
                count += 1
            now = last
        if row < number:
            reach[cause[row]] = max(reach[cause[row]], end[row])
    return count


def divide_by_loop(
    starts: Int64Array,
    ends: Int64Array,
    causes: npt.NDArray[np.int8],
    first: Int64Array,
    last: Int64Array,
    divided: Written[np.int64],
) -> None:
    """Add up the parts of each window by cause; both are in order, so each is looked at once.

    `divided` holds one number for every window, for every cause that occurs.
    """
    stretch = 0
    windows = len(first)
    for window in range(windows):
        while stretch < len(starts) and ends[stretch] <= first[window]:
            stretch += 1
        row = stretch
        while row < len(starts) and starts[row] < last[window]:
            part = min(ends[row], last[window]) - max(starts[row], first[window])
            if part > 0:
                divided[int(causes[row]) * windows + window] += part
            row += 1
