"""The directory of a store: written under another name, locked meanwhile, and put in its place."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

SUFFIX = ".stepscope"
MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
"""In the name of a directory that is being written, or that only its process reads."""
STREAM = "stream-"
"""How the names of stores begin that serve one process alone."""
_LOCK = ".lock"
_BEGINNING_SECONDS = 60  # within which a process that made a directory will have locked it
_ABANDONED_SECONDS = 24 * 3600


class Claim:
    """A directory that this process works in, made at once and locked until it lets go.

    Others see by the lock whether it was left behind by a process that was killed. Where the file
    system or the operating system knows no such locks, they wait for a day.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self._file: IO[bytes] | None = None
        with contextlib.suppress(OSError):
            self._file = (directory / _LOCK).open("wb")
            _lock(self._file)

    def release(self) -> None:
        """Takes the lock and its file away: the directory is complete, or will be removed."""
        if self._file is not None:
            self._file.close()
            self._file = None
        with contextlib.suppress(OSError):
            (self.directory / _LOCK).unlink()

    def remove(self) -> None:
        """Removes the directory with all that is in it."""
        self.release()
        shutil.rmtree(self.directory, ignore_errors=True)


def _lock(opened: IO[bytes]) -> None:
    """Locks a file for this process, without waiting.

    Raises:
        BlockingIOError: Another process has it.
        OSError: The file system cannot lock.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_in_use(directory: Path) -> bool:
    """Whether a living process works in a directory that it claimed."""
    try:
        with (directory / _LOCK).open("rb+") as opened:
            _lock(opened)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def temporary_name(target: Path) -> Path:
    """A name beside a path for what shall stand there, that nobody else has."""
    return target.with_name(f"{target.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")


def remove_abandoned(target: Path, *, is_private: bool = False) -> None:
    """Removes what killed processes left of what should stand at a path.

    Args:
        target: The path.
        is_private: Its name is for one process alone: those of other processes are meant.
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
    """What a store, or what is kept in it, says about itself; empty where it is damaged."""
    try:
        value = json.loads((directory / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def put_in_place(temporary: Path, target: Path, is_valid: Callable[[], bool]) -> bool:
    """Renames a complete directory to its name.

    Args:
        temporary: The directory.
        target: Its name to be.
        is_valid: Whether what is there now is as good: another process may have been faster.

    Returns:
        Whether a valid one is there.
    """
    for _ in range(10):
        with contextlib.suppress(OSError):
            temporary.rename(target)
            return True
        if is_valid():
            return True
        stale = target.with_name(f"{target.name}{TEMPORARY}stale-{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):  # another process may just be doing the same
            target.rename(stale)
        shutil.rmtree(stale, ignore_errors=True)
    return False


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
