"""What stores there are, what they take, and which go when there are too many."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from stepscope.trace.store.code import code_digest
from stepscope.trace.store.derived import DERIVED
from stepscope.trace.store.directory import (
    MANIFEST,
    SUFFIX,
    TEMPORARY,
    is_in_use,
    read_manifest,
)


class StoreState(Enum):
    """What a directory of a store is good for."""

    COMPLETE = "complete"
    IN_USE = "in use"
    """A living process writes it, or reads what it could only read once."""
    OUTDATED = "outdated"
    """Another version of Stepscope made it: it is replaced when its trace is opened next."""
    UNFINISHED = "unfinished"
    """A process that was killed left it."""


@dataclass(frozen=True)
class StoreInfo:
    """One store on disk."""

    path: Path
    source: str
    """The trace's path or URL; empty where the store does not say."""
    size_bytes: int
    """Of everything in it."""
    derived_bytes: int
    """Of that, what was computed from the tables and kept (`trace.derived`)."""
    used: float
    """Unix time when it was last opened."""
    state: StoreState

    @property
    def is_orphan(self) -> bool:
        """Whether it is of a local trace that is no longer there."""
        return bool(self.source) and "://" not in self.source and not Path(self.source).exists()


def stores_in(directory: Path) -> Iterator[StoreInfo]:
    """The stores in a directory, and what killed processes left of them."""
    if not directory.is_dir():
        return
    for path in sorted(directory.iterdir()):
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
        except OSError:  # it is just being removed or put in its place
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
    except OSError:  # removed meanwhile
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


@dataclass(frozen=True)
class Removal:
    """What was removed, and what could not be."""

    removed_bytes: int
    kept_bytes: int
    failures: tuple[tuple[Path, str], ...]
    """Paths, and why they are still there."""


def keep_most_recent(stores: Iterable[StoreInfo], most_bytes: int) -> Removal:
    """Removes stores, those that were not used for the longest time first, down to a size.

    What is unfinished or outdated goes in any case, what a living process has in use never.

    Args:
        stores: The stores.
        most_bytes: How much all that is kept may take.
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
            # Without its manifest it is no store, whatever else of it should remain.
            (store.path / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(store.path)
        except OSError as error:
            failures.append((store.path, error.strerror or str(error)))
            kept += store.size_bytes
            continue
        removed += store.size_bytes
    return Removal(removed, kept, tuple(failures))
