"""Replays a step's operations with given durations: when each would start and end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.fleet.what_if.program import Program

Times = npt.NDArray[np.int64]


def replay(program: Program, work_ns: Times, delay_ns: Times) -> tuple[Times, Times]:
    """Starts and ends of all operations, counted from the beginning of each step.

    An operation starts `delay_ns` after all that it depends on has ended. One that meets nobody
    ends `work_ns` later; one that meets others ends `work_ns` after the last of them has started.

    Args:
        program: The operations of a replica.
        work_ns: Of each step, replica and operation.
        delay_ns: Likewise.

    Returns:
        Starts and ends, likewise.
    """
    start = np.zeros_like(work_ns)
    end = np.zeros_like(work_ns)
    _compiled()(
        program.first_member,
        program.members,
        program.meets,
        program.first_source,
        program.sources,
        work_ns,
        delay_ns,
        start,
        end,
    )
    return start, end


def launch_delays(program: Program, start_ns: Times, end_ns: Times) -> Times:
    """How long after all that it depends on has ended each operation started.

    What depends on nothing is measured from the beginning of the step. Clocks of different workers
    may be apart, so a delay can be negative.
    """
    delays = start_ns.copy()
    for op in range(program.operations):
        first, last = program.first_source[op : op + 2]
        if first < last:
            delays[:, :, op] -= end_ns[:, :, program.sources[first:last]].max(axis=2)
    return delays


def transfers(program: Program, start_ns: Times, end_ns: Times) -> Times:
    """The work of each operation: its duration, or its part after the last of its peers started."""
    work = end_ns - start_ns
    for unit, meets in enumerate(program.meets):
        if meets:
            members = program.members[program.first_member[unit] : program.first_member[unit + 1]]
            latest = start_ns[:, :, members].max(axis=2, keepdims=True)
            if meets == 2:
                latest = latest.max(axis=1, keepdims=True)
            work[:, :, members] = end_ns[:, :, members] - latest
    return work


@functools.cache
def _compiled() -> Callable[..., None]:
    from stepscope.trace.arrays.compiled import compiled

    return compiled(_replay)


def _replay(
    first_member: Any,
    members: Any,
    meets: Any,
    first_source: Any,
    sources: Any,
    work: Any,
    delay: Any,
    start: Any,
    end: Any,
) -> None:
    steps, replicas, _ = work.shape
    for step in range(steps):
        for unit in range(len(meets)):
            first, last = first_member[unit], first_member[unit + 1]
            of_all = np.int64(-(2**62))
            for replica in range(replicas):
                of_replica = np.int64(-(2**62))
                for place in range(first, last):
                    op = members[place]
                    moment = np.int64(0)
                    if first_source[op] < first_source[op + 1]:
                        moment = end[step, replica, sources[first_source[op]]]
                    for edge in range(first_source[op] + 1, first_source[op + 1]):
                        moment = max(moment, end[step, replica, sources[edge]])
                    moment += delay[step, replica, op]
                    start[step, replica, op] = moment
                    of_replica = max(of_replica, moment)
                of_all = max(of_all, of_replica)
                if meets[unit] < 2:
                    for place in range(first, last):
                        op = members[place]
                        end[step, replica, op] = of_replica + work[step, replica, op]
            if meets[unit] == 2:
                for replica in range(replicas):
                    for place in range(first, last):
                        op = members[place]
                        end[step, replica, op] = of_all + work[step, replica, op]
