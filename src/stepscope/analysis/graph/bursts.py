"""Bursts: stretches of work on other threads between two moments at which the main thread stirs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.looking_up import looked_up
from stepscope.trace.arrays.search import places
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.loops import in_machine_code

COMPILED_PAYS_FROM = 200_000
"""Number of events from which the compiled loop is used. Below, loading it takes longer."""
NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, eq=False)
class Bursts:
    """Bursts by lane and start, row for row.

    Attributes:
        lane: The other thread.
        start_ns: When its first event begins.
        stir_ns: When the main thread stirs next, or the time in question ends.
        end_ns: When its last event ends.
        done_ns: When the last of those events ends that end by then; `NEVER` without one.
    """

    lane: Int64Array
    start_ns: Int64Array
    stir_ns: Int64Array
    end_ns: Int64Array
    done_ns: Int64Array


def find_bursts(
    lane: Int64Array,
    start: Int64Array,
    end: Int64Array,
    begins: Int64Array,
    ends: Int64Array,
    last_ns: int,
    skew_ns: int,
) -> Bursts:
    """Divides the events of other threads into bursts.

    Args:
        lane: Thread of each event. Events are sorted by thread, then start.
        start: Their starts.
        end: Their ends.
        begins: When events of the main thread begin, sorted.
        ends: When they end, sorted.
        last_ns: End of the time in question.
        skew_ns: How much later than the main thread stirs an event may end to be done by then.
    """
    begun, ended = (places(times, start, "right") for times in (begins, ends))
    given = (lane, start, end, begun, ended, begins, ends)
    if len(lane) >= COMPILED_PAYS_FROM:
        found = [np.empty(len(lane), np.int64) for _ in range(5)]
        columns = (np.ascontiguousarray(column, np.int64) for column in given)
        count = in_machine_code(bursts_by_loop)(*columns, last_ns, skew_ns, *found)
        return Bursts(*(column[:count].copy() for column in found))
    stir = np.minimum(
        np.minimum(
            looked_up(np.append(begins, last_ns), begun), looked_up(np.append(ends, last_ns), ended)
        ),
        last_ns,
    )
    done = np.where(end <= stir + skew_ns, np.minimum(end, stir), NEVER)
    # Within a lane the events of a burst stand together, the first to begin in front.
    goes_on = (lane[1:] == lane[:-1]) & (begun[1:] == begun[:-1]) & (ended[1:] == ended[:-1])
    first = np.nonzero(np.append(True, ~goes_on)[: len(lane)])[0]
    if len(first):
        end, done = np.maximum.reduceat(end, first), np.maximum.reduceat(done, first)
    return Bursts(lane[first], start[first], stir[first], end, done)


def bursts_by_loop(
    lane: Int64Array,
    start: Int64Array,
    end: Int64Array,
    begun: Int64Array,
    ended: Int64Array,
    begins: Int64Array,
    ends: Int64Array,
    last_ns: int,
    skew_ns: int,
    of_lane: Written[np.int64],
    of_start: Written[np.int64],
    of_stir: Written[np.int64],
    of_end: Written[np.int64],
    of_done: Written[np.int64],
) -> int:
    """Fills in the bursts, and returns how many there are.

    All columns but `begins` and `ends` have a row for each event, and there are no more bursts than
    events. `begun` and `ended` are places in `begins` and `ends`, which are checked to lie there.
    """
    count = 0
    for row in range(len(lane)):
        goes_on = (
            row > 0
            and lane[row] == lane[row - 1]
            and begun[row] == begun[row - 1]
            and ended[row] == ended[row - 1]
        )
        if not goes_on:
            stir = last_ns
            if begun[row] < len(begins):
                stir = min(stir, begins[begun[row]])
            if ended[row] < len(ends):
                stir = min(stir, ends[ended[row]])
            of_lane[count] = lane[row]
            of_start[count] = start[row]
            of_stir[count] = stir
            of_end[count] = end[row]
            of_done[count] = NEVER
            count += 1
        burst = count - 1
        of_end[burst] = max(of_end[burst], end[row])
        if end[row] <= of_stir[burst] + skew_ns:
            of_done[burst] = max(of_done[burst], min(end[row], of_stir[burst]))
    return count
