"""Which traces and memory snapshots the paths of the command line stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stepscope.errors import UnreadableInputError
from stepscope.memory.recognition import is_snapshot_file, snapshots_in
from stepscope.opening.reader import RankRun, Run, Window
from stepscope.run.layout import RankLayout
from stepscope.trace.paths import ranks_of_one_run, resolve_path
from stepscope.viewer.opened import Origin

_PICKLE = ".pickle"
"""In the name of a snapshot behind a URL, whose content is not looked at beforehand."""


def origins_of(paths: Sequence[str]) -> list[Origin]:
    """One origin per trace: of a run every window of every rank, the last window of a rank first.

    Files that are ranks of one run are that run. Snapshots count where they are named, and where
    there is no trace of their rank.

    Raises:
        UnreadableInputError: A path has neither a trace nor a snapshot.
    """
    snapshots = [path for path in paths if "://" not in path and is_snapshot_file(path)]
    files, run = ranks_of_one_run([path for path in paths if path not in snapshots])
    found: list[Origin] = [] if run is None else _of_run(files, run)
    for path in paths:
        if "://" in path:
            name = path.rstrip("/").rpartition("/")[2]
            found.append(Origin(path, name, (path,), is_memory=_PICKLE in name))
        elif path in snapshots:
            found.append(_of_snapshot(path, path))
        elif path not in files:
            found += _of_directory(path)
    return _with_distinct_titles(found)


def _of_directory(path: str) -> list[Origin]:
    """The origins of a run, of a directory or a glob of traces, or of a directory of snapshots."""
    try:
        run = resolve_path(path).run
    except UnreadableInputError as error:
        from stepscope.memory.opening import find_snapshots

        try:
            return [_of_snapshot(find_snapshots(path)[-1], path)]
        except UnreadableInputError:
            raise error from None
    found = _of_run((path,), run)
    if not found:
        raise UnreadableInputError(
            f"{path}: there is no trace and no memory snapshot in it that could be read"
        )
    return found


def _of_snapshot(file: str, run: str, title: str = "", rank: int = 0) -> Origin:
    return Origin(file, title or Path(file).name, (run,), rank, is_memory=True)


def _newest_snapshot(rank: RankRun) -> str | None:
    if rank.manifest is None:
        return None
    found = snapshots_in(RankLayout(rank.directory).snapshots)
    return str(found[-1]) if found else None


def _of_run(paths: tuple[str, ...], run: Run) -> list[Origin]:
    last: list[Origin] = []
    earlier: list[Origin] = []
    for rank in run.ranks:
        snapshot = _newest_snapshot(rank)
        windows = [window for window in rank.windows if window.trace_path is not None]
        for window in windows:
            origin = Origin(
                str(window.trace_path),
                _title(run, window, several=len(windows) > 1),
                paths,
                rank.rank,
                window.index,
                rank.metrics_path,
                rank.step_record_path,
                snapshot,
            )
            (last if window is windows[-1] else earlier).append(origin)
        if snapshot is not None and not windows:
            last.append(_of_snapshot(snapshot, paths[0], f"rank {rank.rank}, memory", rank.rank))
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
