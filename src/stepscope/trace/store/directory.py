"""Store directories: written under a temporary name, locked meanwhile, then renamed.

A folder in a store holds files that were worked out from its tables. They are valid only for the
store they were made from, and so for the code that made it, and only while they are unchanged.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from stepscope.run.files import open_regular
from stepscope.trace.store.contents import contents_of, is_intact, is_own_directory
from stepscope.trace.store.owners import SUFFIX, is_believed, keep_to_owner

MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
"""Part of the name of a directory that is being written, or is private to its process."""
STREAM = "stream-"
"""Prefix of the names of stores that are private to one process."""
_LOCK = ".lock"
_MANIFEST_BYTES = 64_000_000
_BEGINNING_SECONDS = 60  # by then, a process has locked the directory it created
_ABANDONED_SECONDS = 24 * 3600


class Claim:
    """A directory that is created and locked by this process until it is released.

    The lock tells other processes whether the directory was left behind by a killed process. Where
    locks are not supported, they wait for a day instead.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):
            self._file = (directory / _LOCK).open("wb")
            _lock(self._file)

    def release(self) -> None:
        """Removes the lock: the directory is complete, or is about to be removed."""
        if self._file is not None:
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError):
            (self.directory / _LOCK).unlink()

    def remove(self) -> None:
        """Removes the directory and everything in it."""
        self.release()
        shutil.rmtree(self.directory, ignore_errors=True)


def _lock(opened: IO[bytes]) -> None:
    """Locks a file for this process, without waiting.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: The file system does not support locks.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_in_use(directory: Path) -> bool:
    """Whether a running process holds the lock of a directory."""
    try:
        with (directory / _LOCK).open("rb+") as opened:
            _lock(opened)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def temporary_name(target: Path) -> Path:
    """Returns a unique temporary name next to a path."""
    return target.with_name(f"{target.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")


def remove_abandoned(target: Path, *, is_private: bool = False) -> None:
    """Removes temporary directories for a path that killed processes left behind.

    Args:
        is_private: The path is private to this process: removes other processes' private stores.
    """
    name = f"{STREAM}*{SUFFIX}" if is_private else _escaped(target.name)
    for left in target.parent.glob(f"{name}{TEMPORARY}*"):
        try:
            age = time.time() - left.stat().st_mtime
        except OSError:
            continue
        least = _BEGINNING_SECONDS if _can_lock(left) else _ABANDONED_SECONDS
        if age > least and not is_in_use(left):
            shutil.rmtree(left, ignore_errors=True)


def _can_lock(directory: Path) -> bool:
    return sys.platform != "win32" and (directory / _LOCK).exists()


def read_manifest(directory: Path) -> dict[str, Any]:
    """Returns the manifest in a directory; empty if it is missing, damaged or not believed."""
    try:
        value = json.loads(read_believed(directory / MANIFEST, _MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def read_believed(path: Path, most_bytes: int) -> bytes:
    """Returns the content of a file in a store.

    Raises:
        OSError: As `open_regular`; or it is too large, or others could have written it.
    """
    with open_regular(path) as opened:
        if not is_believed(os.fstat(opened.fileno()), path):
            raise PermissionError(errno.EPERM, "another user could have written it", str(path))
        data = opened.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, "too large", str(path))
    return data


def put_in_place(temporary: Path, target: Path, is_valid: Callable[[], bool]) -> bool:
    """Renames a complete directory to its final name, replacing what it held.

    Returns:
        Whether there is a valid directory at `target`.
    """
    with contextlib.suppress(OSError):  # then nobody believes it
        keep_to_owner(temporary)
    for _ in range(10):
        with contextlib.suppress(OSError):
            temporary.rename(target)
            return True
        if is_valid():
            return True
        stale = target.with_name(f"{target.name}{TEMPORARY}stale-{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):  # another process may be doing the same
            target.rename(stale)
        _discard(stale)
    return False


def _discard(path: Path) -> None:
    """Removes whatever is there: a directory, or a file, pipe or link in its place."""
    with contextlib.suppress(OSError):
        path.unlink()
        return
    shutil.rmtree(path, ignore_errors=True)


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


@dataclass(frozen=True)
class StoreFolder:
    """A folder with files that are kept: in a store, or a store itself.

    Attributes:
        names: Of its files.
        identity: What its manifest must say of what the files are made from.
        about: What it says besides.
    """

    directory: Path
    names: tuple[str, ...]
    identity: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict)

    def is_valid(self) -> bool:
        """Whether all files are there, are made from the same, and are intact."""
        manifest = read_manifest(self.directory)
        return (
            all(manifest.get(name) == value for name, value in self.identity.items())
            and is_own_directory(self.directory)
            and is_intact(self.directory, manifest.get("files"), self.names)
        )

    def keep(self, write: Callable[[Path], None]) -> bool:
        """Writes the files, completely or not at all.

        A read-only place or a full disk is not an error: what is kept is made again next time.

        Args:
            write: Writes all files into the directory that it is given.

        Returns:
            Whether the folder is valid now; another process may have been faster.
        """
        from polars.exceptions import PolarsError  # readers of manifests start without polars

        try:
            claim = Claim(temporary_name(self.directory))
        except OSError:
            return False
        try:
            remove_abandoned(self.directory)
            write(claim.directory)
            files = contents_of(claim.directory, self.names)
            manifest = {**self.about, **self.identity, "files": files}
            text = json.dumps(manifest, indent=2) + "\n"
            (claim.directory / MANIFEST).write_text(text, "utf-8")
            claim.release()
            return put_in_place(claim.directory, self.directory, self.is_valid)
        except (OSError, PolarsError):
            return False
        finally:
            claim.remove()
