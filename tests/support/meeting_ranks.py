"""Traces of ranks whose collectives end for all of them once the last has come.

Each rank is a programme of `GpuTrace`, which must be told how long each of its collectives runs.
That depends on when the others come, so the programmes run again and again, each time with what
the last time showed, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.gpu_trace import GpuTrace, Work
from tests.support.planted import dump

Lengths = Callable[[], int]
"""How long the next collective of a rank runs."""


def meet(build: Callable[[int, Lengths], GpuTrace], ranks: int, transfer_ns: int) -> list[GpuTrace]:
    """The ranks of a job that have the same collectives, in the same order, on one clock.

    Args:
        build: Runs the programme of a rank.
        ranks: How many there are.
        transfer_ns: How long a collective takes once all have come.
    """
    known: list[list[int]] = [[] for _ in range(ranks)]
    while True:
        traces = [build(rank, _next_of(known[rank], transfer_ns)) for rank in range(ranks)]
        met = [_collectives(t) for t in traces]
        ends = [max(one.start_ns for one in same) + transfer_ns for same in zip(*met, strict=True)]
        found = [[end - one.start_ns for end, one in zip(ends, mine, strict=True)] for mine in met]
        if found == known:
            return traces
        known = found


def write_ranks(traces: Sequence[GpuTrace], folder: Path) -> Path:
    """One file for each rank."""
    folder.mkdir()
    for rank, t in enumerate(traces):
        (folder / f"rank{rank}.pt.trace.json").write_bytes(dump(t))
    return folder


def steady_step_ns(t: GpuTrace, first: int, last: int) -> int:
    """Mean step from the end of the GPU work of one step to that of another."""
    ends = [max(one.end_ns for one in t.work if one.step == step) for step in (first, last)]
    return round((ends[1] - ends[0]) / (last - first))


def _next_of(lengths: Sequence[int], transfer_ns: int) -> Lengths:
    left = iter(lengths)
    return lambda: next(left, transfer_ns)


def _collectives(t: GpuTrace) -> list[Work]:
    return [one for one in t.work if one.kind == "communication"]
