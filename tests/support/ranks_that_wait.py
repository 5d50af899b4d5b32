"""Traces of ranks whose collectives end for all of them once the last has come.

Each rank is a programme of `GpuTrace`. How long its collectives run depends on when the others
come, so the programmes run beside each other: at each collective, a rank waits until all have come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.gpu_trace import GpuTrace, Length
from tests.support.planted import dump

PATIENCE_S = 300
"""A rank that never comes, because its programme hangs, fails the test and not its worker."""


def meet(build: Callable[[int, Length], GpuTrace], ranks: int, transfer_ns: int) -> list[GpuTrace]:
    """The ranks of a job that have the same collectives, in the same order, on one clock.

    Args:
        build: Runs the programme of a rank; is told how long each of its collectives runs.
        ranks: How many there are.
        transfer_ns: How long a collective takes once all have come.
    """
    collective = _Collective(ranks, transfer_ns)

    def run(rank: int) -> GpuTrace:
        try:
            t = build(rank, lambda start_ns: collective.length_ns(rank, start_ns))
            collective.leave(rank)
        except BaseException:
            collective.abort()
            raise
        return t

    with ThreadPoolExecutor(ranks) as pool:
        running = [pool.submit(run, rank) for rank in range(ranks)]
    # What went wrong with one rank is what broke the meeting for the others.
    errors = [error for one in running if (error := one.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [one.result() for one in running]


class _Collective:
    """Where ranks say when their next collective starts, and learn when it ends."""

    def __init__(self, ranks: int, transfer_ns: int) -> None:
        self._transfer_ns = transfer_ns
        self._starts: list[int | None] = [None] * ranks
        self._end_ns = 0
        self._all_have_come = threading.Barrier(ranks, self._end, PATIENCE_S)

    def length_ns(self, rank: int, start_ns: int) -> int:
        """How long the next collective of a rank runs, which starts then."""
        self._starts[rank] = start_ns
        self._all_have_come.wait()
        return self._end_ns - start_ns

    def leave(self, rank: int) -> None:
        """A rank has no more collectives."""
        self._starts[rank] = None
        self._all_have_come.wait()

    def abort(self) -> None:
        """Let no rank wait any longer."""
        self._all_have_come.abort()

    def _end(self) -> None:
        starts = [start for start in self._starts if start is not None]
        if len(starts) not in (0, len(self._starts)):
            raise ValueError("some ranks have more collectives than others")
        self._end_ns = max(starts, default=0) + self._transfer_ns


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
