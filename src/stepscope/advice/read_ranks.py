"""Asks each rank of a run twice: what the comparison needs, and how it is judged after that.

Answers that are cached are looked up here; what reads the other ranks may do so in other processes
(`fleet.each_rank`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from stepscope.advice.cached_summaries import (
    cached_meeting,
    cached_summary,
    compute_and_cache_meeting,
    compute_and_cache_summary,
)
from stepscope.advice.opened_traces import OpenedTraces
from stepscope.advice.rank_summary import Meeting, RankSummary, Request, Waits
from stepscope.analysis.selection.scope import Scope
from stepscope.run.reader import RankRun

Answer_co = TypeVar("Answer_co", covariant=True)
Answer = TypeVar("Answer")


class Task(Protocol[Answer_co]):
    """One question about a rank."""

    @property
    def rank(self) -> RankRun:
        """The rank."""
        ...

    def known(self) -> Answer_co | None:
        """The cached answer; None if the rank has to be read."""
        ...

    def read(self, opened: OpenedTraces) -> Answer_co:
        """Read the rank, and cache the answer."""
        ...


@dataclass(frozen=True)
class MeetingTask:
    """What does the comparison with others need from a rank?"""

    rank: RankRun
    asked: Scope

    def known(self) -> Meeting | None:
        """See `Task`."""
        return cached_meeting(self.rank, self.asked)

    def read(self, opened: OpenedTraces) -> Meeting:
        """See `Task`."""
        return compute_and_cache_meeting(self.rank, self.asked, opened)


@dataclass(frozen=True)
class SummaryTask:
    """How is a rank judged?

    Attributes:
        rank: The rank.
        request: What is asked of it.
        waits: How long it waited for others; None: unknown.
        met: The answer to its `MeetingTask`; None: it was not asked.
    """

    rank: RankRun
    request: Request
    waits: Waits | None = None
    met: Meeting | None = None

    def known(self) -> RankSummary | None:
        """See `Task`."""
        return cached_summary(self.rank, self.request, self.waits, self.met)

    def read(self, opened: OpenedTraces) -> RankSummary:
        """See `Task`."""
        return compute_and_cache_summary(self.rank, self.request, self.waits, self.met, opened)


class ReadsRanks(Protocol):
    """Reads ranks, wherever that happens."""

    def __call__(self, tasks: Sequence[Task[Answer]]) -> list[Answer]:
        """The answers in the order of the tasks. An error of a task is raised."""
        ...


EachRank = Callable[[], AbstractContextManager[ReadsRanks]]
"""Begins to read the ranks of a run; what was kept for further tasks is freed at the end."""


@contextmanager
def in_turn() -> Iterator[ReadsRanks]:
    """Read one rank after the other here."""
    opened = OpenedTraces()

    def read(tasks: Sequence[Task[Answer]]) -> list[Answer]:
        return [task.read(opened) for task in tasks]

    try:
        yield read
    finally:
        opened.drop()


def answers(read: ReadsRanks, tasks: Sequence[Task[Answer]]) -> list[Answer]:
    """The cached answers, and those that reading the other ranks gives, in the order of the tasks.

    Raises:
        UsageError: The scope names what none of a rank's traces has.
    """
    found = [task.known() for task in tasks]
    unknown = [task for task, answer in zip(tasks, found, strict=True) if answer is None]
    made = iter(read(unknown) if unknown else ())
    return [next(made) if answer is None else answer for answer in found]
