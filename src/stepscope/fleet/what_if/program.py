"""What must happen before what in a step: operations, their dependencies, and which exchange data.

Every replica runs the same operations, so dependencies and exchanges are those of one replica; a
exchange may take in its counterparts in all replicas. They become one graph of all replicas, which
the replay of `analysis.graph` runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.analysis.blame.matched import in_order
from stepscope.analysis.graph.loops import sweep
from stepscope.errors import UnreadableInputError
from stepscope.trace.machine.jit import jit

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Exchange:
    """Operations that exchange data: none transfers before all of them have started.

    Attributes:
        operations: Its members within a replica.
        spans_replicas: Whether the members of all replicas meet.
    """

    operations: tuple[int, ...]
    spans_replicas: bool = False


@dataclass(frozen=True)
class Program:
    """The operations of a step in all replicas as a graph.

    Before each operation is a node that takes no time: all that meet have theirs in common.

    Attributes:
        first_edge: The edges into node i stand from `first_edge[i]` to `first_edge[i + 1]`.
        source: Node that each edge leaves, which is before the one it leads to.
        node: Of each replica and operation.
    """

    exchanges: Sequence[Exchange]
    first_edge: Numbers
    source: Numbers
    node: Numbers

    def replay(self, work_ns: Numbers) -> Numbers:
        """The end of each operation by step and replica, counted from the beginning of the step.

        An operation starts when all that it depends on has ended, and all that it meets may start,
        and ends its `work_ns` later.
        """
        nodes, edges = len(self.first_edge) - 1, len(self.source)
        delay, is_kept = np.zeros(edges, np.int64), np.ones(edges, np.bool_)
        ends = np.empty_like(work_ns)
        for step, work in enumerate(work_ns):
            dur, start, end = np.zeros((3, nodes), np.int64)
            dur[self.node] = work
            jit(sweep)(self.first_edge, self.source, delay, is_kept, dur, start, end)
            ends[step] = end[self.node]
        return ends

    def transfers(self, start_ns: Numbers, end_ns: Numbers) -> Numbers:
        """The work of each operation: its duration, or its part after its last peer started."""
        work = end_ns - start_ns
        for exchange in self.exchanges:
            members = list(exchange.operations)
            replicas = (1, 2) if exchange.spans_replicas else 2
            latest = start_ns[:, :, members].max(axis=replicas, keepdims=True)
            work[:, :, members] = end_ns[:, :, members] - latest
        return work


def assemble(
    shape: tuple[int, int],
    dependencies: Iterable[tuple[int, int]],
    exchanges: Sequence[Exchange],
    name: str,
) -> Program:
    """Orders operations by what they depend on.

    Args:
        shape: Numbers of replicas, and of operations of each.
        dependencies: Pairs (before, after): `after` starts when `before` has ended.
        exchanges: No operation is part of two.
    """
    replicas, operations = shape
    sources: list[set[int]] = [set() for _ in range(operations)]
    for before, after in dependencies:
        if before != after:
            sources[after].add(before)
    exchanged = {member for exchange in exchanges for member in exchange.operations}
    units = [*exchanges, *(Exchange((op,)) for op in range(operations) if op not in exchanged)]
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
    node = np.empty(shape, np.int64)
    into: list[list[int]] = []
    for unit in (units[place] for place in np.argsort(numbers)):
        members = list(unit.operations)
        awaited = sorted({source for member in members for source in sources[member]})
        each = [[replica] for replica in range(replicas)]
        for group in [list(range(replicas))] if unit.spans_replicas else each:
            together = np.ix_(group, members)
            beginning = len(into)
            into.append(node[np.ix_(group, awaited)].reshape(-1).tolist())
            node[together] = beginning + 1 + np.arange(node[together].size).reshape(len(group), -1)
            into += [[beginning]] * (len(group) * len(members))
    return Program(
        exchanges,
        np.cumsum([0, *map(len, into)], dtype=np.int64),
        np.array([source for found in into for source in found], np.int64),
        node,
    )
