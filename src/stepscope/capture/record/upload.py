"""Uploads a run to an fsspec URL (`s3://…`) while it grows, beside the training.

Everything is written locally first. A separate thread uploads finished files every few seconds.
Each upload is checked by its size and retried; what cannot be uploaded stays local, and the
manifest says so. The manifest is uploaded last, so that everything it lists is already there. Each
rank uploads its own folder, and the first rank the files that all have in common.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from stepscope.capture.record.memory import MEMORY_LOG_FILE
from stepscope.run.figures import error_in_words
from stepscope.run.layout import MANIFEST_FILE, METRICS_FILE, RING_FILE, STEPS_FILE, RunLayout

log = logging.getLogger("stepscope")

_LOOK_S = 5.0
_GROWING_S = 60.0
"""How often files that keep growing are uploaded again."""
_GROWING = frozenset({STEPS_FILE, METRICS_FILE, MANIFEST_FILE, MEMORY_LOG_FILE})
_PAUSES_S = (1.0, 4.0)
"""Pauses between the first and second attempt, and the second and third."""
_BLOCK_BYTES = 4 << 20
_OF_A_RANK = re.compile(r"rank(\d+)[_.]")


class Uploader:
    """Uploads one rank's part of a run, into a folder with the run's name below the URL."""

    def __init__(
        self,
        url: str,
        layout: RunLayout,
        rank: int,
        *,
        look_s: float = _LOOK_S,
    ) -> None:
        self.target = f"{url.rstrip('/')}/{layout.root.name}"
        self._root = layout.root
        self._own = layout.rank(rank).root
        self._rank = rank
        self._look_s = look_s
        self._file_system: Any = None
        self._remote = ""
        self._beside: set[Path] = set()
        self._copied: dict[Path, tuple[int, int]] = {}
        self._copied_at: dict[Path, float] = {}
        self._failed: dict[Path, str] = {}
        self._problem = ""
        self._has_warned = False
        self._wake = threading.Event()
        self._is_ending = False
        self._thread = threading.Thread(target=self._work, name="stepscope upload", daemon=True)

    def start(self) -> None:
        """Start the upload thread."""
        self._thread.start()

    def add_beside(self, path: Path) -> None:
        """Also upload a file beside the run, below the folder that contains the run."""
        if path.is_relative_to(self._root.parent):
            self._beside.add(path)

    def finish(self, limit_s: Callable[[], float]) -> None:
        """Upload what is left, except the manifest, waiting up to a limit."""
        self._is_ending = True
        self._wake.set()
        self._wait(self._thread, limit_s)

    def finish_manifest(self, limit_s: Callable[[], float]) -> None:
        """Upload the final manifest, waiting up to a limit."""
        if self._thread.is_alive():
            return
        path = self._own / MANIFEST_FILE
        thread = threading.Thread(
            target=lambda: self._copy_all([path]), name="stepscope upload", daemon=True
        )
        thread.start()
        self._wait(thread, limit_s)

    @property
    def is_complete(self) -> bool:
        """Whether all files have been uploaded as they are now."""
        return not self._thread.is_alive() and not any(self._is_new(path) for path in self._files())

    def problems(self) -> list[str]:
        """What could not be uploaded and stays local, for the manifest."""
        if self._problem:
            return [f"nothing was copied to {self.target}: {self._problem}"]
        left = [path for path in self._files() if path.name != MANIFEST_FILE and self._is_new(path)]
        return [
            f"{path.relative_to(self._base(path))} was not copied and stays at {path}: "
            f"{self._failed.get(path, 'there was no time left')}"
            for path in left
        ]

    # -- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            is_last = self._is_ending
            with contextlib.suppress(FileNotFoundError):  # a folder was removed in the meantime
                self._copy_all(self._due(is_last=is_last))
            if is_last:
                return
            self._wake.wait(self._look_s)
            self._wake.clear()

    def _due(self, *, is_last: bool) -> list[Path]:
        """The files to upload now, the manifest last."""
        now = time.monotonic()
        due = []
        for path in self._files():
            if not self._is_new(path):
                continue
            is_young = now - self._copied_at.get(path, -_GROWING_S) < _GROWING_S
            if path.name == MANIFEST_FILE and is_last:
                continue
            if not is_last and path.name in _GROWING and is_young:
                continue
            due.append(path)
        return sorted(due, key=lambda path: (path.name == MANIFEST_FILE, path))

    def _copy_all(self, paths: list[Path]) -> None:
        for path in paths:
            problem = self._connect() or self._try(path)
            if not problem:
                self._failed.pop(path, None)
                continue
            self._failed[path] = problem
            if not self._has_warned:
                self._has_warned = True
                log.warning("stepscope: %s is not copied to %s: %s", path, self.target, problem)
            if self._file_system is None:
                return

    def _connect(self) -> str:
        """Resolve the URL; returns the problem, or an empty string."""
        if self._file_system is None:
            try:
                from fsspec.core import url_to_fs

                self._file_system, path = url_to_fs(self.target)
                self._remote = path.rstrip("/")
            except Exception as error:  # noqa: BLE001 - a service can fail in any way
                self._problem = error_in_words(error)
                return self._problem
        self._problem = ""
        return ""

    def _try(self, path: Path) -> str:
        """Upload one file; returns the problem, or an empty string."""
        problem = ""
        for pause_s in (0.0, *_PAUSES_S):
            if pause_s and self._is_ending:
                time.sleep(min(pause_s, 1.0))
            elif pause_s:
                self._wake.wait(pause_s)
            try:
                self._copy(path)
            except FileNotFoundError as error:
                if not path.exists():
                    return ""  # removed to stay within the disk limit
                problem = error_in_words(error)
            except Exception as error:  # noqa: BLE001 - a service can fail in any way
                problem = error_in_words(error)
            else:
                return ""
        return problem

    def _copy(self, path: Path) -> None:
        version = _version(path)
        base = self._base(path)
        folder = self._remote if base == self._root else self._remote.rpartition("/")[0]
        remote = f"{folder}/{path.relative_to(base).as_posix()}"
        parent = remote.rpartition("/")[0]
        self._file_system.makedirs(parent, exist_ok=True)
        left = version[0]
        with path.open("rb") as source, self._file_system.open(remote, "wb") as sink:
            while left:
                block = source.read(min(left, _BLOCK_BYTES))
                if not block:
                    break
                sink.write(block)
                left -= len(block)
        self._file_system.invalidate_cache(parent)
        arrived = self._file_system.info(remote)["size"]
        if arrived != version[0]:
            raise OSError(f"{arrived} of {version[0]} bytes arrived")
        self._copied[path] = version
        self._copied_at[path] = time.monotonic()

    # -- what there is ---------------------------------------------------------------------------

    def _files(self) -> Iterator[Path]:
        """This rank's files; for the first rank, also those that belong to no rank."""
        # Another rank may be removing its folder, so it is not entered; a folder that disappears is
        # skipped.
        found = []
        for folder, folders, names in os.walk(self._root):
            if folder == str(self._root):
                folders[:] = [name for name in folders if self._is_mine(name)]
            # Names that begin with a dot belong to files that are still being written.
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [Path(folder, name) for name in names if not name.startswith(".")]
        for path in sorted(found):
            if self._own not in path.parents:
                named = _OF_A_RANK.match(path.name)
                if self._rank != (int(named.group(1)) if named else 0):
                    continue
            if path.is_file() and path.name != RING_FILE:
                yield path
        # A copy of the set: the training thread adds to it.
        yield from sorted(path for path in tuple(self._beside) if path.is_file())

    def _is_mine(self, folder: str) -> bool:
        return RunLayout.rank_of(folder) is None or folder == self._own.name

    def _base(self, path: Path) -> Path:
        """The folder to which a file's path in the copy is relative."""
        return self._root if path.is_relative_to(self._root) else self._root.parent

    def _is_new(self, path: Path) -> bool:
        try:
            return self._copied.get(path) != _version(path)
        except OSError:
            return False

    @staticmethod
    def _wait(thread: threading.Thread, limit_s: Callable[[], float]) -> None:
        started = time.monotonic()
        while thread.is_alive() and time.monotonic() - started < limit_s():
            thread.join(0.05)


def _version(path: Path) -> tuple[int, int]:
    """The size of a file, and when it was changed."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns
