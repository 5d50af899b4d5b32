"""What must happen before what in a step: operations, their dependencies, and who meets whom.

Every replica runs the same operations, so a program describes one replica; a meeting may take in
its counterparts in all replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analysis.blame.matched import in_order
from stepscope.errors import UnreadableInputError

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Meeting:
    """Operations that exchange data: none transfers before all of them have started.

    Attributes:
        operations: Its members within a replica.
        spans_replicas: Whether the members of all replicas meet.
    """

    operations: tuple[int, ...]
    spans_replicas: bool = False


@dataclass(frozen=True)
class Program:
    """The operations of a replica in an order in which they can be worked out.

    A unit is a meeting, or an operation that meets nobody. Units are ordered so that everything a
    unit depends on is in units before it.

    Attributes:
        first_member: Where each unit's members begin in `members`, and where the last one's end.
        members: The operations, unit by unit.
        meets: Of each unit: 0 for an operation that meets nobody, 1 for a meeting within each
            replica, 2 for one of all replicas.
        first_source: Where the operations that each one depends on begin in `sources`.
        sources: Those operations.
    """

    operations: int
    first_member: Numbers
    members: Numbers
    meets: npt.NDArray[np.int8]
    first_source: Numbers
    sources: Numbers


def assemble(
    operations: int, dependencies: Iterable[tuple[int, int]], meetings: Sequence[Meeting], name: str
) -> Program:
    """Orders operations by what they depend on.

    Args:
        dependencies: Pairs (before, after): `after` starts when `before` has ended.
        meetings: No operation is part of two.
    """
    sources: list[set[int]] = [set() for _ in range(operations)]
    for before, after in dependencies:
        if before != after:
            sources[after].add(before)
    in_meeting = {member for meeting in meetings for member in meeting.operations}
    units = [*meetings, *(Meeting((op,)) for op in range(operations) if op not in in_meeting)]
    kinds = [2 if unit.spans_replicas else 1 for unit in meetings]
    kinds += [0] * (len(units) - len(meetings))
    unit_of = {member: place for place, unit in enumerate(units) for member in unit.operations}
    follows = {
        (unit_of[source], place)
        for place, unit in enumerate(units)
        for member in unit.operations
        for source in sources[member]
    }
    edges = np.array(sorted(follows), np.int64).reshape(-1, 2)
    numbers = in_order(edges[:, 0], edges[:, 1], len(units))
    if (numbers < 0).any():
        raise UnreadableInputError(
            f"{name}: the operations wait for each other in a circle, so their "
            "order is unknown; are their start times on one clock?"
        )
    order = np.argsort(numbers).tolist()
    return Program(
        operations,
        np.cumsum([0, *(len(units[place].operations) for place in order)], dtype=np.int64),
        np.array([member for place in order for member in units[place].operations], np.int64),
        np.array([kinds[place] for place in order], np.int8),
        np.cumsum([0, *map(len, sources)], dtype=np.int64),
        np.array([source for found in sources for source in sorted(found)], np.int64),
    )
