"""Traces of ranks that meet in collectives of any groups, each a programme that runs once.

A rank is a generator: it yields a `Meet` where its next collective is launched, and gets the mark
of its end once all ranks of the group have come. Nothing about who waits for whom is put in, so the
same job without its fault tells what mending it brings.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from tests.support.gpu_trace import COMM_STREAM, GpuTrace, Moment


@dataclass(frozen=True)
class Meet:
    """A collective.

    Attributes:
        kind: As `GpuTrace.collective` takes it.
        size: Bytes.
        transfer_ns: How long it takes once all have come.
        ranks: Its ranks; all of the job where empty.
        name: Name of its process group.
        stream: The stream of the group's collectives.
        waits_for_compute: Whether it starts only after the compute work launched so far.
    """

    kind: str
    size: int
    transfer_ns: int
    ranks: tuple[int, ...] = ()
    name: str = "0"
    stream: int = COMM_STREAM
    waits_for_compute: bool = True


Program = Generator[Meet, Moment, None]


class _Rank:
    def __init__(self, t: GpuTrace, program: Program) -> None:
        self.t = t
        self.program = program
        self.meet: Meet | None = None
        self.mark: Moment | None = None

    def advance(self, end: Moment | None, everyone: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Run up to the next collective; returns its group, empty at the end."""
        try:
            self.meet = next(self.program) if end is None else self.program.send(end)
        except StopIteration:
            return "", ()
        ranks = self.meet.ranks or everyone
        self.mark = self.t.collective(
            self.meet.kind,
            self.meet.size,
            0,
            group_name=self.meet.name,
            group_ranks=ranks,
            stream=self.meet.stream,
            waits_for_compute=self.meet.waits_for_compute,
        )
        return self.meet.name, ranks

    @property
    def came_ns(self) -> int:
        return self.t.work[-1].start_ns

    def leave(self, end_ns: int) -> Moment:
        """The kernel that it is in ends."""
        assert self.meet is not None
        assert self.mark is not None
        self.t.work[-1] = replace(self.t.work[-1], end_ns=end_ns)
        kernel = next(one for one in reversed(self.t.events) if one.get("cat") == "kernel")
        kernel["dur"] = end_ns - kernel["ts"]
        self.t._free[self.t._place(self.meet.stream, None)] = end_ns
        return replace(self.mark, time_ns=end_ns)


def run_ranks(
    build: Callable[[GpuTrace, int], Program], count: int, *, sync_records: bool = False
) -> list[GpuTrace]:
    """The traces of a job.

    Args:
        build: The programme of a rank, given its trace and its number.
        count: How many ranks there are.
        sync_records: As `GpuTrace` has it.
    """
    everyone = tuple(range(count))
    traces = [
        GpuTrace(world_size=count, rank=rank, device=rank % 8, sync_records=sync_records)
        for rank in everyone
    ]
    ranks = [_Rank(t, build(t, rank)) for rank, t in enumerate(traces)]
    there: dict[tuple[str, tuple[int, ...]], int] = {}
    ready: list[tuple[int, Moment | None]] = [(rank, None) for rank in everyone]
    while ready:
        rank, end = ready.pop()
        group = ranks[rank].advance(end, everyone)
        members = group[1]
        there[group] = there.get(group, 0) + 1
        if members and there[group] == len(members):
            there[group] = 0
            last_ns = max(ranks[member].came_ns for member in members)
            for member in members:
                meet = ranks[member].meet
                assert meet is not None
                ready.append((member, ranks[member].leave(last_ns + meet.transfer_ns)))
    assert not any(count for group, count in there.items() if group[1]), "a rank waits for ever"
    return traces
