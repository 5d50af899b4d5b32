"""Replays a step's operations with given durations: when each would end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.fleet.what_if.program import Program
from stepscope.trace.machine.arrays import Table, WrittenTable
from stepscope.trace.machine.jit import jit

Times = npt.NDArray[np.int64]

_EARLIEST = -(2**62)


def replay(program: Program, work_ns: Times) -> Times:
    """The end of each operation by step and replica, counted from the beginning of the step.

    An operation starts when all that it depends on has ended. One that meets nobody ends its
    `work_ns` later; one that meets others ends `work_ns` after the last of them has started.
    """
    steps, replicas, _ = work_ns.shape
    work = np.ascontiguousarray(work_ns).reshape(-1, program.operations)
    end = np.zeros(work.shape, np.int64)
    jit(replay_by_loop)(
        program.first_member,
        program.members,
        program.meets,
        program.first_source,
        program.sources,
        work,
        end,
        steps,
        replicas,
    )
    return end.reshape(work_ns.shape)


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


def replay_by_loop(
    first_member: Times,
    members: Times,
    meets: npt.NDArray[np.int8],
    first_source: Times,
    sources: Times,
    work: Table[np.int64],
    end: WrittenTable[np.int64],
    steps: int,
    replicas: int,
) -> None:
    """Fills in `end`. The rows of all tables are the replicas of each step in turn.

    `first_member` and `first_source` have one number more than there are units and operations, and
    hold places in `members` and `sources`; these are operations, which are the columns of the
    tables. So indices lie inside, as the tables have `steps` times `replicas` rows.
    """
    for step in range(steps):
        first_row, last_row = step * replicas, (step + 1) * replicas
        for unit in range(len(meets)):
            first, last = first_member[unit], first_member[unit + 1]
            of_all = _EARLIEST
            for row in range(first_row, last_row):
                of_replica = _EARLIEST
                for place in range(first, last):
                    op = members[place]
                    moment = 0
                    if first_source[op] < first_source[op + 1]:
                        moment = end[row, sources[first_source[op]]]
                    for edge in range(first_source[op] + 1, first_source[op + 1]):
                        moment = max(moment, end[row, sources[edge]])
                    of_replica = max(of_replica, moment)
                of_all = max(of_all, of_replica)
                if meets[unit] < 2:
                    for place in range(first, last):
                        op = members[place]
                        end[row, op] = of_replica + work[row, op]
            if meets[unit] == 2:
                for row in range(first_row, last_row):
                    for place in range(first, last):
                        op = members[place]
                        end[row, op] = of_all + work[row, op]
