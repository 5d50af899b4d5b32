"""Lists stores with their sizes, and removes the least recently used."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from stepscope.trace.store.code import code_digest
from stepscope.trace.store.contents import is_own_directory
from stepscope.trace.store.derived import DERIVED
from stepscope.trace.store.directory import (
    MANIFEST,
    TEMPORARY,
    is_in_use,
    read_manifest,
)
from stepscope.trace.store.origin import MEMOS
from stepscope.trace.store.owners import SUFFIX


class StoreState(Enum):
    """The state of a store directory."""

    COMPLETE = "complete"
    IN_USE = "in use"
    """A running process is writing it, or it is private to a running process."""
    OUTDATED = "outdated"
    """Made by another version of Stepscope: replaced when the trace is next opened."""
    UNFINISHED = "unfinished"
    """Left behind by a killed process."""


@dataclass(frozen=True)
class StoreInfo:
    """One store on disk."""

    path: Path
    source: str
    """Path or URL of the trace; empty if unknown."""
    size_bytes: int
    """Total size of its files."""
    derived_bytes: int
    """Size of the cached derived tables, included in `size_bytes`."""
    used: float
    """Unix time of the last use."""
    state: StoreState

    @property
    def is_orphan(self) -> bool:
        """Whether its trace was a local file that no longer exists."""
        return bool(self.source) and "://" not in self.source and not Path(self.source).exists()


def stores_in(directory: Path) -> Iterator[StoreInfo]:
    """Yields the stores in a directory, including unfinished ones, and the reader's memos."""
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
        if path.name.startswith(MEMOS) and is_own_directory(path):
            used = path.stat().st_mtime
            yield StoreInfo(path, "", _size(path), 0, used, StoreState.COMPLETE)
        if SUFFIX not in path.name or not path.is_dir() or path.is_symlink():
            continue
        manifest = read_manifest(path)
        is_store = manifest.get("format") == "stepscope store" and path.name.endswith(SUFFIX)
        if not is_store and TEMPORARY not in path.name:
            continue
        if is_store:
            state = StoreState.COMPLETE if _is_of_this_code(manifest) else StoreState.OUTDATED
        else:
            state = StoreState.IN_USE if is_in_use(path) else StoreState.UNFINISHED
        try:
            used = path.stat().st_mtime
        except OSError:  # it was just removed or renamed
            continue
        source = manifest.get("source")
        yield StoreInfo(
            path,
            source if isinstance(source, str) else "",
            _size(path),
            _size(path / DERIVED),
            used,
            state,
        )


def _is_of_this_code(manifest: dict[str, Any]) -> bool:
    key = manifest.get("key")
    return isinstance(key, dict) and key.get("code") == code_digest()


def _size(path: Path) -> int:
    return sum(_file_size(entry) for entry in path.rglob("*")) if path.is_dir() else 0


def _file_size(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError:  # removed in the meantime
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


@dataclass(frozen=True)
class Removal:
    """The result of removing stores."""

    removed_bytes: int
    kept_bytes: int
    failures: tuple[tuple[Path, str], ...]
    """Paths that could not be removed, with the reason."""


def keep_most_recent(stores: Iterable[StoreInfo], most_bytes: int) -> Removal:
    """Removes the least recently used stores until the rest fits a size.

    Unfinished and outdated stores are always removed; stores in use never are.
    """
    removed = kept = 0
    failures: list[tuple[Path, str]] = []
    is_full = False
    for store in sorted(stores, key=lambda store: store.used, reverse=True):
        if store.state is StoreState.IN_USE:
            kept += store.size_bytes
            continue
        if store.state is StoreState.COMPLETE and not is_full:
            is_full = kept + store.size_bytes > most_bytes
            if not is_full:
                kept += store.size_bytes
                continue
        try:
            # Without its manifest it is not a store, even if removing the rest fails.
            (store.path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(store.path)
        except OSError as error:
            failures.append((store.path, error.strerror or str(error)))
            kept += store.size_bytes
            continue
        removed += store.size_bytes
    return Removal(removed, kept, tuple(failures))
