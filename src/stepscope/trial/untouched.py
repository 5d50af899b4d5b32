"""Notices which of the user's files a script writes while it is tried."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

MOST_FILES = 20_000
_NOT_THEIRS = {".git", ".hg", "__pycache__", "node_modules", ".venv", "venv", ".mypy_cache"}
_MOST_NAMED = 5

_State = dict[str, tuple[int, int]]


class FolderWatch:
    """Compares folders before and after.

    Watched are the working directory, the folders of the files that the command names, and the
    folders that it names: a script that writes anywhere else is not noticed.

    Args:
        command: The script's command.
        scratch: A folder to leave out.
    """

    def __init__(self, command: Sequence[str], scratch: Path) -> None:
        self._scratch = str(scratch.resolve())
        self._folders = _folders(command)
        self._before = self._state()

    def warnings(self) -> tuple[str, ...]:
        """What was written since the watch began."""
        if len(self._before) >= MOST_FILES:
            where = ", ".join(map(str, self._folders))
            what = "whether the script wrote into them was not checked"
            return (f"more than {MOST_FILES:,} files in {where}: {what}",)
        after = self._state()
        changed = [p for p in sorted(after) if self._before.get(p) not in (None, after[p])]
        new = [path for path in sorted(after) if path not in self._before]
        found = []
        for paths, what in ((changed, "overwrote or extended"), (new, "wrote")):
            if paths:
                names = ", ".join(map(_short, paths[:_MOST_NAMED]))
                more = len(paths) - _MOST_NAMED
                rest = f" and {more} more" if more > 0 else ""
                found.append(
                    f"the script {what} files of its own while it was tried: {names}{rest}. To "
                    "keep trials out of your folders, give it an output folder with {scratch} in "
                    "its name"
                )
        return tuple(found)

    def _state(self) -> _State:
        found: _State = {}
        for folder in self._folders:
            for entry in _walk(str(folder), self._scratch):
                if len(found) >= MOST_FILES:
                    return found
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                found[entry.path] = (status.st_mtime_ns, status.st_size)
        return found


def _folders(command: Sequence[str]) -> tuple[Path, ...]:
    found = [Path.cwd()]
    for word in command:
        path = Path(word.rpartition("=")[2])
        if path.is_dir():
            found.append(path.absolute())
        elif path.is_file() and not os.access(path, os.X_OK):
            found.append(path.absolute().parent)
    tops = sorted({folder.resolve() for folder in found})
    return tuple(one for one in tops if not any(other in one.parents for other in tops))


def _walk(folder: str, scratch: str) -> Iterator[os.DirEntry[str]]:
    ahead = [folder]
    while ahead:
        try:
            entries = list(os.scandir(ahead.pop()))
        except OSError:
            continue
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NOT_THEIRS and entry.path != scratch:
                    ahead.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry


def _short(path: str) -> str:
    try:
        return os.path.relpath(path)
    except ValueError:  # another drive
        return path
