"""Summaries of ranks, kept in the store of the trace that they were made from.

Reading a rank takes seconds for a large trace; its summary is small. So it is kept as long as
everything that it depends on stays the same: the trace (its store stands for that), all other files
of the rank, what was asked of it, what the other ranks were found to do, and the code. A rank
without a store, or judged by another window than its last one, is read each time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from stepscope._version import __version__
from stepscope.advice.rank_summary import Meeting, RankSummary, Request, Waits
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import StepscopeError
from stepscope.run.layout import RankLayout
from stepscope.run.reader import RankRun, Window
from stepscope.run.regular import is_regular
from stepscope.trace.store.code import code_digest
from stepscope.trace.store.kept import KeptAnswers, answers_beside
from stepscope.trace.store.origin import Key, key_of
from stepscope.trace.store.values import UnfitError, from_json, to_json

_ROOMS = tuple(f"stepscope.{room}" for room in ("advice", "analysis", "memory", "run", "trace"))
"""Packages whose code decides what a summary says."""
_Kept = TypeVar("_Kept", Meeting, RankSummary)


def kept_meeting(rank: RankRun, asked: Scope) -> Meeting | None:
    """The kept result of `rank_judging.meeting_of`; None if it has to be read."""
    return _about_meeting(rank, asked).find()


def meeting_to_keep(rank: RankRun, asked: Scope) -> Meeting:
    """The result of `rank_judging.meeting_of`, which is kept."""
    from stepscope.advice.rank_judging import meeting_of

    return _about_meeting(rank, asked).make(lambda: meeting_of(rank, asked))


def kept_summary(
    rank: RankRun, request: Request, waits: Waits | None, met: Meeting | None
) -> RankSummary | None:
    """The kept result of `rank_judging.summarise_rank`; None if the rank has to be judged."""
    return _about_summary(rank, request, waits, met).find()


def summary_to_keep(
    rank: RankRun, request: Request, waits: Waits | None, met: Meeting | None
) -> RankSummary:
    """The result of `rank_judging.summarise_rank`, which is kept.

    Raises:
        UsageError: The scope names what none of its traces has.
    """
    from stepscope.advice.rank_judging import summarise_rank

    about = _about_summary(rank, request, waits, met)
    return about.make(lambda: summarise_rank(rank, request, waits, met))


@dataclass(frozen=True)
class _About(Generic[_Kept]):
    """What is asked of a rank.

    Attributes:
        kind: The type of the answer.
        rank: The rank.
        inputs: All other inputs, each with its type; None if one of them cannot be identified.
    """

    kind: type[_Kept]
    rank: RankRun
    inputs: tuple[tuple[Any, Any], ...] | None

    def find(self) -> _Kept | None:
        """The kept answer; None without one that is still right."""
        try:
            answers = self._answers()
            key = None if answers is None else self._key(_files_of(self.rank))
            text = None if answers is None or key is None else answers.read(key)
            found = None if text is None else from_json(self.kind, json.loads(text))
        except (StepscopeError, ValueError, OSError, RecursionError):
            return None
        return found if found is not None and self._fits(found) else None

    def make(self, read: Callable[[], _Kept]) -> _Kept:
        """The answer, made anew, and kept if nothing that it depends on changed meanwhile."""
        before = self._state()
        made = read()
        if before is None or not self._fits(made):
            return made
        try:
            answers = self._answers()
            if answers is not None and self._state() == before:
                key = self._key(before.files)
                text = json.dumps(to_json(self.kind, made), separators=(",", ":"))
                if key is not None:
                    answers.keep(key, text)
        except (StepscopeError, UnfitError, OSError):
            return made
        return made

    @property
    def _window(self) -> Window | None:
        """The window that a rank is judged by, unless it cannot be read."""
        windows = reversed(self.rank.windows)
        return next((one for one in windows if one.trace_path is not None), None)

    def _answers(self) -> KeptAnswers | None:
        window = self._window
        if self.inputs is None or window is None or window.trace_path is None:
            return None
        return answers_beside(window.trace_path)

    def _fits(self, answer: _Kept) -> bool:
        """Whether an answer is of this rank, by its last window.

        A store can come from anyone: an answer in it may not name another file to be opened.
        """
        window = self._window
        if window is None or answer.rank != self.rank.rank:
            return False
        if isinstance(answer, RankSummary):
            return answer.window == window
        return answer.window == window.index

    def _state(self) -> _State | None:
        """What the trace and the other files are now; None if that cannot be told."""
        window = self._window
        if self.inputs is None or window is None or window.trace_path is None:
            return None
        try:
            trace = key_of(window.trace_path)
            return None if trace is None else _State(trace, _files_of(self.rank))
        except (StepscopeError, OSError):
            return None

    def _key(self, files: dict[str, Key] | None) -> str | None:
        """Stands for all that the answer depends on; None if some of it cannot be identified."""
        code = [code_digest(room) for room in _ROOMS]
        if files is None or self.inputs is None or None in code:
            return None
        depends_on = [
            self.kind.__name__,
            __version__,
            code,
            to_json(RankRun, self.rank),
            to_json(dict[str, Key], files),
            [to_json(kind, value) for kind, value in self.inputs],
        ]
        return hashlib.blake2b(json.dumps(depends_on).encode("ascii"), digest_size=16).hexdigest()


@dataclass(frozen=True)
class _State:
    """What the files of a rank are at one moment.

    Attributes:
        trace: The trace that it is judged by.
        files: The others, by path; None if one cannot be identified.
    """

    trace: Key
    files: dict[str, Key] | None


def _about_meeting(rank: RankRun, asked: Scope) -> _About[Meeting]:
    return _About(Meeting, rank, ((Scope, asked),))


def _about_summary(
    rank: RankRun, request: Request, waits: Waits | None, met: Meeting | None
) -> _About[RankSummary]:
    if request.baseline is not None:  # a trace that is open has no identity
        return _About(RankSummary, rank, None)
    inputs = (
        (Scope, request.scope),
        (Thresholds, request.thresholds),
        (bool, request.has_peers),
        (Waits | None, waits),
        (Meeting | None, met),
    )
    return _About(RankSummary, rank, inputs)


def _files_of(rank: RankRun) -> dict[str, Key] | None:
    """The files that a rank recorded beside its windows, by path.

    These are its step record, metrics, censuses and snapshots, and whatever else is there: a file
    too many costs an answer, one too few would keep it wrong.

    Returns:
        None if one cannot be identified.

    Raises:
        UnreadableInputError: A file cannot be read.
        OSError: A directory cannot be listed.
    """
    if rank.manifest is None:
        return {}
    found = {}
    for path in sorted(_entries(rank)):
        key = key_of(path) if is_regular(path) else None
        if key is None:
            return None
        found[str(path)] = key
    return found


def _entries(rank: RankRun) -> Iterator[Path]:
    for directory in (rank.directory, RankLayout(rank.directory).snapshots):
        if directory.is_dir():
            yield from (entry for entry in directory.iterdir() if not entry.is_dir())
