"""Two passes over the ranks of a run: what the comparison needs, then how each is judged.

Reading a rank takes seconds for a large trace; what is found out about it is small, and is kept as
a memo: for the same files of the rank, the same question, and the same findings about the others.
Memos are looked up here; what reads the other ranks may do so in other processes
(`fleet.each_rank`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from stepscope.advice.rank.opened_traces import OpenedTraces
from stepscope.advice.rank.summary import ComparedRank, RankSummary, Request, Waits
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UnreadableInputError
from stepscope.opening.reader import RankRun
from stepscope.run.layout import RankLayout
from stepscope.trace.store.memo import Memo
from stepscope.trace.store.origin import identity_of

if TYPE_CHECKING:
    from stepscope.advice.rank.window_details import WindowDetails

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Task(Generic[Answer]):
    """One question about a rank."""

    rank: RankRun
    ANSWER: ClassVar[type[Any]]

    def known(self) -> Answer | None:
        """The answer, if it is kept; None if the rank has to be read."""
        return self._memo.find()

    def read(self, opened: OpenedTraces | None = None) -> Answer:
        """Read the rank, and keep the answer."""
        return self._memo.make(lambda: self._answer(opened))

    def _answer(self, opened: OpenedTraces | None) -> Answer:
        raise NotImplementedError

    @property
    def _memo(self) -> Memo[Answer]:
        return Memo(self.ANSWER, lambda: [self, _files_of(self.rank)])


@dataclass(frozen=True)
class ComparedRankTask(Task[ComparedRank]):
    """What does the comparison with others need from a rank?"""

    asked: Scope
    ANSWER: ClassVar[type[Any]] = ComparedRank

    def _answer(self, opened: OpenedTraces | None) -> ComparedRank:
        from stepscope.advice.rank.diagnose_rank import read_compared_rank

        return read_compared_rank(self.rank, self.asked, opened)


@dataclass(frozen=True)
class SummaryTask(Task[RankSummary]):
    """How is a rank judged?

    Attributes:
        compared: The answer to its `ComparedRankTask`; None: it was not asked.
    """

    request: Request
    waits: Waits | None = None
    compared: ComparedRank | None = None
    ANSWER: ClassVar[type[Any]] = RankSummary

    def _answer(self, opened: OpenedTraces | None) -> RankSummary:
        from stepscope.advice.rank.diagnose_rank import summarise_rank

        return summarise_rank(self.rank, self.request, self.waits, self.compared, opened)


def _files_of(rank: RankRun) -> list[Any]:
    """The traces of a rank, and the files that it recorded beside its windows.

    These are its step record, metrics, censuses and snapshots, and whatever else is there: a file
    too many costs an answer, one too few would leave a wrong one.

    Raises:
        UnreadableInputError: One cannot be read, or the rank has no trace.
        OSError: A directory cannot be listed.
    """
    traces = [window.trace_path for window in rank.windows if window.trace_path is not None]
    if not traces:
        raise UnreadableInputError(f"rank {rank.rank} has no trace: it is judged at once")
    beside: list[Path] = []
    if rank.manifest is not None:
        for directory in (rank.directory, RankLayout(rank.directory).snapshots):
            if directory.is_dir():
                beside += (entry for entry in directory.iterdir() if not entry.is_dir())
    return [identity_of(path) for path in (*traces, *sorted(beside))]


class ReadsRanks(Protocol):
    """Reads ranks, wherever that happens."""

    def __call__(self, tasks: Sequence[Task[Answer]]) -> list[Answer]:
        """The answers in the order of the tasks. An error of a task is raised."""
        ...


EachRank = Callable[[], AbstractContextManager[ReadsRanks]]
"""Begins to read the ranks of a run; what was kept for further tasks is freed at the end."""


@contextmanager
def one_by_one() -> Iterator[ReadsRanks]:
    """Read one rank after the other here."""
    opened = OpenedTraces()

    def read(tasks: Sequence[Task[Answer]]) -> list[Answer]:
        return [task.read(opened) for task in tasks]

    try:
        yield read
    finally:
        opened.drop()


def answers(read: ReadsRanks, tasks: Sequence[Task[Answer]]) -> list[Answer]:
    """The answers that are kept, and those from reading the other ranks, in the tasks' order."""
    found = [task.known() for task in tasks]
    unknown = [task for task, answer in zip(tasks, found, strict=True) if answer is None]
    made = iter(read(unknown) if unknown else ())
    return [next(made) if answer is None else answer for answer in found]


def details_of(rank: RankSummary) -> WindowDetails | None:
    """The details of the window that a rank was judged by; None without one.

    The answers are about the steps, devices and events of the diagnosis.
    """
    if rank.window is None or rank.window.trace_path is None or rank.scope is None:
        return None
    path, asked, steady = rank.window.trace_path, rank.scope.asked, rank.window_steps
    from stepscope.advice.rank.window_details import WindowDetails

    memo = Memo(WindowDetails, lambda: [identity_of(path), asked, steady])
    found = memo.find()
    if found is not None:
        return found
    from stepscope.advice.rank.window_answers import answer_window

    return memo.make(lambda: answer_window(path, asked, steady))
