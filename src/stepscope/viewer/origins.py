"""Which traces the paths of the command line stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.errors import UnreadableInputError
from stepscope.run.reader import Run, Window, open_run
from stepscope.viewer.opened import Origin


def origins_of(paths: Sequence[str]) -> list[Origin]:
    """One origin per trace: of a run every window of every rank, the last window of a rank first.

    Raises:
        UnreadableInputError: A path has no trace.
    """
    found: list[Origin] = []
    for path in paths:
        if "://" in path:
            found.append(Origin(path, path.rstrip("/").rpartition("/")[2], path))
            continue
        run = open_run(path)
        mine = _of_run(path, run)
        if not mine:
            raise UnreadableInputError(f"{path}: there is no trace in it that could be read")
        found += mine
    return _with_distinct_titles(found)


def _of_run(path: str, run: Run) -> list[Origin]:
    last: list[Origin] = []
    earlier: list[Origin] = []
    for rank in run.ranks:
        windows = [window for window in rank.windows if window.trace_path is not None]
        for window in windows:
            origin = Origin(
                str(window.trace_path),
                _title(run, window, several=len(windows) > 1),
                path,
                rank.rank,
                rank.metrics_path,
                rank.step_record_path,
            )
            (last if window is windows[-1] else earlier).append(origin)
    return last + earlier


def _title(run: Run, window: Window, *, several: bool) -> str:
    if window.record is None or run.job is None:
        return window.trace_path.name if window.trace_path else ""
    title = f"rank {window.rank}"
    return f"{title}, window {window.index}" if several else title


def _with_distinct_titles(origins: list[Origin]) -> list[Origin]:
    titles = [origin.title for origin in origins]
    return [
        origin
        if titles.count(origin.title) == 1
        else replace(origin, title=f"{Path(origin.path).parent.name}/{origin.title}")
        for origin in origins
    ]
