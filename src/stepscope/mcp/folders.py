"""The folders that the user allowed, and what is a path inside them.

A path counts by where it really is, with all links followed. A folder is refused as a whole if any
link in it leads out of the allowed folders, because a verb that reads the folder would follow it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.opening.discover import MOST_ENTRIES, is_trace_name
from stepscope.run.layout import RUN_FILE, RankLayout, RunLayout
from stepscope.terminal.plain_text import cut_in_the_middle

_SNAPSHOT_SUFFIXES = (".pickle", ".pkl")
_LEVELS_READ_ABOVE = 2
"""How far above a path readers look for the run that it belongs to; see `run.reader.open_run`."""


@dataclass(frozen=True)
class Folders:
    """The allowed folders.

    Attributes:
        roots: Their real paths.
    """

    roots: tuple[Path, ...]

    @classmethod
    def allowing(cls, given: Sequence[str]) -> Folders:
        """The folders that a user names at the start.

        Raises:
            UsageError: One is no folder, or is part of a run that is not allowed as a whole.
        """
        roots = []
        for name in given:
            root = Path(name).resolve()
            if not root.is_dir():
                raise UsageError(f"--allow {name}: no such folder")
            run = _run_above(root)
            if run is not None:
                raise UsageError(f"--allow {name}: part of the run {run}; allow that folder")
            roots.append(root)
        return cls(tuple(dict.fromkeys(roots)))

    def inside(self, given: str) -> Path:
        """The real path of a file or folder inside the allowed folders.

        Args:
            given: A path; a relative one starts in the first allowed folder that has it.

        Raises:
            UsageError: It leads out of the allowed folders, or has a link that does.
            UnreadableInputError: There is no such file, or too many in the folder to check them.
        """
        candidates = [self._resolved(root / given, given) for root in self.roots]
        allowed = [path for path in candidates if self._has(path)]
        if not allowed:
            raise UsageError(f"{given}: not inside an allowed folder ({self._named()})")
        path = next((one for one in allowed if one.exists()), None)
        if path is None:
            raise UnreadableInputError(f"{given}: no such file or directory")
        run = _run_above(path)
        if run is not None and self._has(run):
            self._check_links(run)
        elif path.is_dir():
            self._check_links(path)
        return path

    def recordings(self, most: int) -> tuple[list[str], bool]:
        """What can be asked about: paths of runs, traces and memory snapshots, the newest first.

        Args:
            most: Maximum number of paths.

        Returns:
            The paths, and whether there are more.
        """
        found: dict[Path, float] = {}
        for root in self.roots:
            for path in _recordings_below(root):
                if self._has(path.resolve()):
                    found[path] = path.stat().st_mtime
        newest = sorted(found, key=lambda path: (-found[path], str(path)))
        return [str(path) for path in newest[:most]], len(newest) > most

    def _resolved(self, path: Path, given: str) -> Path:
        try:
            resolved = path.resolve()
            is_loop = resolved.is_symlink()  # since Python 3.13
        except (OSError, RuntimeError, ValueError):  # a loop of links, a null byte, a long name
            is_loop = True
        if is_loop:
            raise UsageError(f"{cut_in_the_middle(given, 100)!r}: not a path")
        return resolved

    def _has(self, path: Path) -> bool:
        return any(path.is_relative_to(root) for root in self.roots)

    def _check_links(self, folder: Path) -> None:
        count = 0
        for place, folders, files in os.walk(folder):
            count += len(folders) + len(files)
            if count > MOST_ENTRIES:
                raise UnreadableInputError(
                    f"{folder}: more than {MOST_ENTRIES:,} files and folders: name a folder nearer"
                    " to the recording"
                )
            for name in (*folders, *files):
                entry = Path(place, name)
                if entry.is_symlink() and not self._has(self._resolved(entry, str(entry))):
                    raise UsageError(
                        f"{entry}: a link that leads out of the allowed folders ({self._named()})"
                    )

    def _named(self) -> str:
        return ", ".join(map(str, self.roots))


def _run_above(path: Path) -> Path | None:
    """The run of which a path is a part: what readers of the path would read as well."""
    for above in reversed(list(path.parents)[:_LEVELS_READ_ABOVE]):
        has_rank = any(
            RunLayout.rank_of(child.parent.name) is not None
            for child in above.glob("rank*/manifest.json")
        )
        has_census = any(place.exists() for place in RankLayout(above).censuses)
        if (above / RUN_FILE).exists() or has_rank or has_census:
            return above
    return None


def _recordings_below(root: Path) -> list[Path]:
    """Runs, and traces and snapshots outside runs, by name; hidden folders are left out."""
    found = []
    count = 0
    for place, folders, files in os.walk(root):
        count += len(folders) + len(files)
        if count > MOST_ENTRIES:
            break
        if RUN_FILE in files:
            found.append(Path(place))
            folders.clear()
            continue
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not name.endswith(".stepscope")
        )
        found += [
            Path(place, name)
            for name in files
            if is_trace_name(name) or name.endswith(_SNAPSHOT_SUFFIXES)
        ]
    return [path for path in found if path.exists()]
