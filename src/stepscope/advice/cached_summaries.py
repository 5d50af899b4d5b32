"""Summaries of ranks, cached in the store of the trace that they were made from.

Reading a rank takes seconds for a large trace; its summary is small. It is valid as long as
everything that it depends on stays the same: the trace (its store stands for that), all other files
of the rank, what was asked of it, what the other ranks were found to do, and the code. A rank
without a store, or judged by another window than its last one, is read each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from stepscope.advice.opened_traces import OpenedTraces
from stepscope.advice.rank_summary import Meeting, RankSummary, Request, Waits
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.selection.scope import Scope
from stepscope.run.layout import RankLayout
from stepscope.run.reader import RankRun, Window
from stepscope.run.regular_files import is_regular
from stepscope.trace.store.cached_values import CachedValue
from stepscope.trace.store.origin import Key, key_of
from stepscope.trace.store.values import to_json

ROOMS = tuple(f"stepscope.{room}" for room in ("advice", "analysis", "memory", "run", "trace"))
"""Packages whose code decides what a summary and the details of a window say."""
_Result = TypeVar("_Result", Meeting, RankSummary)


def cached_meeting(rank: RankRun, asked: Scope) -> Meeting | None:
    """The cached result of `rank_judging.meeting_of`; None if it has to be read."""
    return _about_meeting(rank, asked).find()


def compute_and_cache_meeting(
    rank: RankRun, asked: Scope, opened: OpenedTraces | None = None
) -> Meeting:
    """Call `rank_judging.meeting_of`, and cache its result."""
    from stepscope.advice.rank_judging import meeting_of

    return _about_meeting(rank, asked).make(lambda: meeting_of(rank, asked, opened))


def cached_summary(
    rank: RankRun, request: Request, waits: Waits | None, met: Meeting | None
) -> RankSummary | None:
    """The cached result of `rank_judging.summarise_rank`; None if the rank has to be judged."""
    return _about_summary(rank, request, waits, met).find()


def compute_and_cache_summary(
    rank: RankRun,
    request: Request,
    waits: Waits | None,
    met: Meeting | None,
    opened: OpenedTraces | None = None,
) -> RankSummary:
    """Call `rank_judging.summarise_rank`, and cache its result.

    Raises:
        UsageError: The scope names what none of its traces has.
    """
    from stepscope.advice.rank_judging import summarise_rank

    about = _about_summary(rank, request, waits, met)
    return about.make(lambda: summarise_rank(rank, request, waits, met, opened))


def _about_meeting(rank: RankRun, asked: Scope) -> CachedValue[Meeting]:
    window = _window_of(rank)

    def fits(met: Meeting) -> bool:
        return window is not None and met.rank == rank.rank and met.window == window.index

    return _about(Meeting, rank, ((Scope, asked),), fits)


def _about_summary(
    rank: RankRun, request: Request, waits: Waits | None, met: Meeting | None
) -> CachedValue[RankSummary]:
    window = _window_of(rank)
    inputs = (
        (Scope, request.scope),
        (Thresholds, request.thresholds),
        (bool, request.has_peers),
        (Waits | None, waits),
        (Meeting | None, met),
    )

    def fits(summary: RankSummary) -> bool:
        return window is not None and summary.rank == rank.rank and summary.window == window

    # A baseline is a trace that is open: it has no identity.
    return _about(RankSummary, rank, inputs if request.baseline is None else None, fits)


def _about(
    kind: type[_Result],
    rank: RankRun,
    inputs: tuple[tuple[Any, Any], ...] | None,
    fits: Callable[[_Result], bool],
) -> CachedValue[_Result]:
    """What is asked of a rank.

    Args:
        kind: The type of the answer.
        rank: The rank.
        inputs: All inputs other than the rank, each with its type; None if one of them cannot be
            identified.
        fits: Whether an answer is of this rank, by its last window.
    """
    window = _window_of(rank)

    def depends_on() -> list[Any] | None:
        files = _files_of(rank)
        if files is None or inputs is None:
            return None
        return [
            to_json(RankRun, rank),
            to_json(dict[str, Key], files),
            [to_json(kind, value) for kind, value in inputs],
        ]

    trace = None if window is None or inputs is None else window.trace_path
    return CachedValue(kind, trace, ROOMS, depends_on, fits)


def _window_of(rank: RankRun) -> Window | None:
    """The window that a rank is judged by, unless it cannot be read."""
    windows = reversed(rank.windows)
    return next((one for one in windows if one.trace_path is not None), None)


def _files_of(rank: RankRun) -> dict[str, Key] | None:
    """The files that a rank recorded beside its windows, by path.

    These are its step record, metrics, censuses and snapshots, and whatever else is there: a file
    too many costs an answer, one too few would leave a wrong one in the cache.

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
