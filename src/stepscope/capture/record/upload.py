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
            target=self._copy_all, args=([path],), name="stepscope upload", daemon=True
        )
        thread.start()
        self._wait(thread, limit_s)

    @property
    def is_complete(self) -> bool:
        """Whether all files have been uploaded as they are now."""
        return not self._thread.is_alive() and not any(map(self._is_new, self._files()))

    def problems(self) -> list[str]:
        """What could not be uploaded and stays local, for the manifest."""
        if self._problem:
            return [f"nothing was copied to {self.target}: {self._problem}"]
        left = [path for path in self._files() if path.name != MANIFEST_FILE and self._is_new(path)]
        return [
            f"{path.name} was not copied and stays at {path}: "
            f"{self._failed.get(path) or 'there was no time left'}"
            for path in left
        ]

    # -- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_ending
            with contextlib.suppress(FileNotFoundError):  # a folder was removed in the meantime
                self._copy_all([path for path in self._files() if self._is_due(path, is_last)])
            if not is_last:
                self._wake.wait(self._look_s)
                self._wake.clear()

    def _is_due(self, path: Path, is_last: bool) -> bool:
        """Whether to upload a file now; the last manifest is not written yet at the last look."""
        if is_last:
            return path.name != MANIFEST_FILE and self._is_new(path)
        since_s = time.monotonic() - self._copied_at.get(path, -_GROWING_S)
        return (path.name not in _GROWING or since_s >= _GROWING_S) and self._is_new(path)

    def _copy_all(self, paths: list[Path]) -> None:
        if self._file_system is None:
            try:
                from fsspec.core import url_to_fs

                self._file_system, remote = url_to_fs(self.target)
                self._remote = remote.rstrip("/").rpartition("/")[0]
                self._problem = ""
            except Exception as error:  # noqa: BLE001 - a service can fail in any way
                self._problem = error_in_words(error)
                self._warn(f"the run is not copied to {self.target}: {self._problem}")
                return
        for path in paths:
            problem = self._failed[path] = self._try(path)
            if problem:
                self._warn(f"{path} is not copied to {self.target}: {problem}")

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("stepscope: %s", message)

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
            except Exception as error:  # noqa: BLE001 - a service can fail in any way
                if not path.exists():
                    return ""  # removed to stay within the disk limit
                problem = error_in_words(error)
            else:
                return ""
        return problem

    def _copy(self, path: Path) -> None:
        version = _version(path)
        remote = f"{self._remote}/{path.relative_to(self._root.parent).as_posix()}"
        parent = remote.rpartition("/")[0]
        self._file_system.makedirs(parent, exist_ok=True)
        self._file_system.put_file(str(path), remote)
        self._file_system.invalidate_cache(parent)
        arrived = self._file_system.info(remote)["size"]
        if arrived < version[0]:  # more than that of a file that grows
            raise OSError(f"{arrived} of {version[0]} bytes arrived")
        self._copied[path] = version
        self._copied_at[path] = time.monotonic()

    # -- what there is ---------------------------------------------------------------------------

    def _files(self) -> Iterator[Path]:
        """This rank's files, its manifest last; for the first rank, also those of no rank."""
        # Another rank may be removing its folder, so it is not entered; a folder that disappears is
        # skipped. Names that begin with a dot belong to files that are still being written.
        found = set(self._beside)
        for folder, folders, names in os.walk(self._root):
            if folder == str(self._root):
                folders[:] = [name for name in folders if self._is_mine(name)]
            folders[:] = [name for name in folders if not name.startswith(".")]
            found.update(Path(folder, name) for name in names if not name.startswith("."))
        for path in sorted(found, key=lambda path: (path.name == MANIFEST_FILE, path)):
            named = _OF_A_RANK.match(path.name)
            is_common = path.is_relative_to(self._root) and self._own not in path.parents
            if is_common and self._rank != (int(named.group(1)) if named else 0):
                continue
            if path.is_file() and path.name != RING_FILE:
                yield path

    def _is_mine(self, folder: str) -> bool:
        return RunLayout.rank_of(folder) is None or folder == self._own.name

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
