"""Notices which of the user's files changed while a script was tried, in spite of the copies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_FILES = 20_000
_NOT_THEIRS = {".git", ".hg", "__pycache__", "node_modules", ".venv", "venv", ".mypy_cache"}
_MOST_NAMED = 5

_State = dict[str, tuple[int, int]]


class FolderWatch:
    """Compares folders before and after.

    Args:
        folders: The folders that are copied for each attempt.
        own: A folder of our own, to leave out.
    """

    def __init__(self, folders: Sequence[Path], own: Path) -> None:
        self._own = str(own.resolve())
        self._streams = _standard_streams()
        self._folders = folders
        self._before = self._state()

    def warnings(self) -> tuple[str, ...]:
        """What was written since the watch began."""
        if len(self._before) >= MOST_FILES:
            where = ", ".join(map(str, self._folders))
            what = "whether something wrote into them was not checked"
            return (f"more than {MOST_FILES:,} files in {where}: {what}",)
        after = self._state()
        changed = [path for path in sorted(after) if self._before.get(path) != after[path]]
        if not changed:
            return ()
        names = ", ".join(map(_short, changed[:_MOST_NAMED]))
        more = len(changed) - _MOST_NAMED
        rest = f" and {more} more" if more > 0 else ""
        what = (
            f"files changed in your folders during the trials: {names}{rest}. Each trial had a copy"
            " of these folders, so another program wrote them, or one that the script starts, by"
            " its absolute path"
        )
        return (what,)

    def _state(self) -> _State:
        found: _State = {}
        for folder in self._folders:
            for entry in _walk(str(folder), self._own):
                if len(found) >= MOST_FILES:
                    return found
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if (status.st_dev, status.st_ino) in self._streams:
                    continue
                found[entry.path] = (status.st_mtime_ns, status.st_size)
        return found


def _standard_streams() -> set[tuple[int, int]]:
    """Files to which the user led the output of this process."""
    found = set()
    for number in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(number)
            found.add((status.st_dev, status.st_ino))
    return found


def _walk(folder: str, own: str) -> Iterator[os.DirEntry[str]]:
    ahead = [folder]
    while ahead:
        try:
            entries = list(os.scandir(ahead.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NOT_THEIRS and entry.path != own:
                    ahead.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry


def _short(path: str) -> str:
    try:
        return os.path.relpath(path)
    except ValueError:  # another drive
        return path
