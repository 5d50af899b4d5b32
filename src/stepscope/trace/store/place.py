"""What a store is made of, where it may stand, and who is at work on one that is not complete."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stepscope.errors import UnreadableInputError
from stepscope.trace.schema import SCHEMA_VERSION
from stepscope.trace.source.remote import RemoteFile

SUFFIX = ".stepscope"
MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
"""In the name of a directory that is being written, or that only its process reads."""
_LOCK = ".lock"
_PROBE_BYTES = 64 * 1024
_STREAM = "stream-"
_BEGINNING_SECONDS = 60  # within which a process that made a directory will have locked it
_ABANDONED_SECONDS = 24 * 3600


@dataclass(frozen=True)
class Key:
    """What a store was made of; it is valid only for a file of the same key.

    Attributes:
        size_bytes: Of the file as stored; -1 where its service does not say.
        modified_ns: When it was changed last, in Unix time; 0 for a remote file.
        probe: A digest of its beginning, middle and end.
        schema_version: `schema.SCHEMA_VERSION` when it was read.
        version: What a remote file's service says tells versions apart; empty for a local one.
    """

    size_bytes: int
    modified_ns: int
    probe: str
    schema_version: int
    version: str = ""


@dataclass(frozen=True)
class Origin:
    """What a store is made of.

    Attributes:
        name: The trace's absolute path, or its URL, for the manifest.
        key: None where nothing tells its content from another (a stream, a server that does not
            say): its store serves this process alone.
        places: Where the store may stand, the best first.
    """

    name: str
    key: Key | None
    places: tuple[Path, ...]


def key_of(path: Path) -> Key:
    """The key of a trace file: its size, its time, and a digest of its beginning, middle and end.

    Raises:
        UnreadableInputError: It cannot be read.
    """
    try:
        with path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            digest = hashlib.blake2b(digest_size=16)
            last = max(0, status.st_size - _PROBE_BYTES)
            for offset in sorted({0, last // 2, last}):
                opened.seek(offset)
                digest.update(opened.read(_PROBE_BYTES))
    except OSError as error:
        raise UnreadableInputError(f"{path}: cannot be read: {error.strerror}") from error
    return Key(status.st_size, status.st_mtime_ns, digest.hexdigest(), SCHEMA_VERSION)


def cache_directory() -> Path:
    """Where stores go that cannot stand beside their trace (`STEPSCOPE_CACHE` overrides it)."""
    override = os.environ.get("STEPSCOPE_CACHE")
    if override:
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("stepscope")) / "traces"


def store_places(path: Path) -> tuple[Path, Path]:
    """Where the store of a trace may be: beside it, and in the cache directory."""
    absolute = path.absolute()
    return absolute.with_name(path.name + SUFFIX), _in_cache(str(absolute), path.name)


def _in_cache(location: str, name: str) -> Path:
    digest = hashlib.blake2b(location.encode("utf-8", "surrogateescape"), digest_size=8)
    return cache_directory() / f"{digest.hexdigest()}-{name}{SUFFIX}"


def origin_of_file(path: Path) -> Origin:
    """A local file as what a store is made of.

    Raises:
        UnreadableInputError: It cannot be read.
    """
    return Origin(str(path.absolute()), key_of(path), store_places(path))


def origin_of_remote(file: RemoteFile) -> Origin:
    """A remote file as what a store is made of, in the cache directory.

    Its service is asked for the content at three places, where it says enough for a key.

    Raises:
        UnreadableInputError: It cannot be read.
    """
    if not file.version:
        return origin_of_stream(file.name)
    size = -1 if file.size_bytes is None else file.size_bytes
    key = Key(size, 0, file.probe(_PROBE_BYTES), SCHEMA_VERSION, file.version)
    # A name comes from a stranger: only what is harmless in a file's name stays.
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in file.name.rpartition("/")[2])
    return Origin(file.name, key, (_in_cache(file.url, name[-80:]),))


def origin_of_stream(name: str) -> Origin:
    """Something that can be read once, as what a store for this process alone is made of."""
    unique = f"{_STREAM}{secrets.token_hex(8)}{SUFFIX}"
    return Origin(name, None, (cache_directory() / unique, Path(tempfile.gettempdir()) / unique))


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


def temporary_name(place: Path) -> Path:
    """A name beside a place for what shall stand there, that nobody else has."""
    return place.with_name(f"{place.name}{TEMPORARY}{os.getpid()}-{secrets.token_hex(4)}")


def remove_abandoned(place: Path, *, is_private: bool = False) -> None:
    """Removes what killed processes left of what should stand at a place.

    Args:
        place: The place.
        is_private: Its name is for one process alone: those of other processes are meant.
    """
    name = f"{_STREAM}*{SUFFIX}" if is_private else _escaped(place.name)
    for left in place.parent.glob(f"{name}{TEMPORARY}*"):
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


def put_in_place(temporary: Path, place: Path, is_valid: Callable[[], bool]) -> bool:
    """Renames a complete directory to its name.

    Args:
        temporary: The directory.
        place: Its name to be.
        is_valid: Whether what is there now is as good: another process may have been faster.

    Returns:
        Whether a valid one is there.
    """
    for _ in range(10):
        with contextlib.suppress(OSError):
            temporary.rename(place)
            return True
        if is_valid():
            return True
        stale = place.with_name(f"{place.name}{TEMPORARY}stale-{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):  # another process may just be doing the same
            place.rename(stale)
        shutil.rmtree(stale, ignore_errors=True)
    return False


def _escaped(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
