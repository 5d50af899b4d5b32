"""The details of a window, cached in the store of its trace as summaries of ranks are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.advice.cached_summaries import ROOMS
from stepscope.advice.rank_summary import RankSummary
from stepscope.advice.window_details import TABLES, DetailedAnswer, WindowDetails
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.store.cached_values import CachedValue
from stepscope.trace.store.values import to_json


def details_of(rank: RankSummary) -> WindowDetails | None:
    """The details of the window that a rank was judged by, from the cache; None without one.

    The answers are about the steps, devices and events of the diagnosis.
    """
    if rank.window is None or rank.window.trace_path is None or rank.scope is None:
        return None
    path, asked, steady = rank.window.trace_path, rank.scope.asked, rank.window_steps
    about = _about(path, asked, steady)
    found = about.find()
    if found is not None:
        return found
    from stepscope.advice.window_answers import answer_window

    return about.make(lambda: answer_window(path, asked, steady))


def _about(path: Path, asked: Scope, steady: tuple[int, ...]) -> CachedValue[WindowDetails]:
    def depends_on() -> list[Any]:
        return [str(path), to_json(Scope, asked), steady]

    def fits(details: WindowDetails) -> bool:
        return details.recording.path == str(path) and all(map(_is_of_a_page, details.answers))

    return CachedValue(WindowDetails, path, ROOMS, depends_on, fits)


def _is_of_a_page(answer: DetailedAnswer) -> bool:
    """Whether an answer has the tables that a page shows, in its order, with columns of these."""
    tables = TABLES.get(answer.question, {})
    return (
        bool(tables)
        and list(answer.tables) == list(tables)
        and all(
            set(answer.tables[field].rows.columns) <= set(columns)
            for field, columns in tables.items()
        )
    )
