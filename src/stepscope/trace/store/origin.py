"""What a store is made from, by which code, and where it is kept."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnreadableInputError
from stepscope.opening.user_cache import user_cache
from stepscope.trace.store.code import code_digest
from stepscope.trace.store.directory import STREAM
from stepscope.trace.store.owners import SUFFIX

if TYPE_CHECKING:
    from stepscope.trace.source.remote import RemoteFile

MEMOS = "memos-"
"""Beginning of the name of the directory of memos."""
_PROBE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Key:
    """Identifies the content of a file and the code that read it.

    A store is valid only for a file with the same key.

    Attributes:
        size_bytes: Size of the file as stored; -1 if the service does not report it.
        modified_ns: Modification time in Unix time; 0 for a remote file.
        probe: Digest of the beginning, middle and end of a local file.
        version: Version reported by a remote file's service; empty for a local file.
    """

    size_bytes: int
    modified_ns: int
    probe: str
    code: str
    version: str = ""


@dataclass(frozen=True)
class Origin:
    """Where a store comes from, and where it is kept.

    Attributes:
        name: The trace's absolute path or URL, for the manifest.
        key: Identifies content and code. None if either is unknown (a stream, a server that reports
            no version, a frozen program): the store is then private to this process.
        paths: Where the store can be kept, in order of preference.
    """

    name: str
    key: Key | None
    paths: tuple[Path, ...]


def key_of(path: Path) -> Key | None:
    """Returns the key of a trace file; None if it is not a file or its reader's code is unknown."""
    found, code = _probe(path), code_digest()
    return None if found is None or code is None else Key(*found, code)


def identity_of(path: Path) -> list[Any]:
    """Returns what identifies a file and its content, for the key of a memo.

    Raises:
        UnreadableInputError: The file cannot be read, or is none that can be read twice: a pipe, or
            a copy of standard input, which goes with its process.
    """
    found = None if path.parent.parent == cache_directory() else _probe(path)
    if found is None:
        raise UnreadableInputError(f"{path}: not a regular file")
    return [str(path), *found]


def _probe(path: Path) -> tuple[int, int, str] | None:
    """Returns size, modification time and probe of a file; None if it is not a regular one.

    Never waits: a pipe is not opened, and a file that claims to be empty is not read. Files of
    `/proc` do, and reading some of them, such as `/proc/kmsg`, never ends.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        with path.open("rb") as opened:
            status = os.fstat(opened.fileno())
            digest = hashlib.blake2b(digest_size=16)
            last = max(0, status.st_size - _PROBE_BYTES)
            for offset in sorted({0, last // 2, last}) if status.st_size else ():
                opened.seek(offset)
                digest.update(opened.read(_PROBE_BYTES))
    except OSError as error:
        raise UnreadableInputError(f"{path}: cannot be read: {error.strerror}") from error
    return status.st_size, status.st_mtime_ns, digest.hexdigest()


def cache_directory() -> Path:
    """Returns the directory for stores that cannot be kept next to their trace.

    `STEPSCOPE_CACHE` overrides it.
    """
    override = os.environ.get("STEPSCOPE_CACHE")
    if override:
        return Path(override)
    return user_cache() / "traces"


def memo_directory() -> Path:
    """Returns the directory for memos: one of each user, as a cache directory may be shared."""
    return cache_directory() / f"{MEMOS}{os.getuid() if hasattr(os, 'getuid') else ''}"


def store_paths(path: Path) -> tuple[Path, ...]:
    """Returns the paths for the store of a local trace: next to it, and in the cache directory.

    With `STEPSCOPE_STORES=cache` in the cache directory only, so that nothing is written elsewhere.
    """
    absolute = path.absolute()
    cached = _in_cache(str(absolute), path.name)
    if os.environ.get("STEPSCOPE_STORES") == "cache":
        return (cached,)
    return absolute.with_name(path.name + SUFFIX), cached


def _in_cache(location: str, name: str) -> Path:
    digest = hashlib.blake2b(location.encode("utf-8", "surrogateescape"), digest_size=8)
    return cache_directory() / f"{digest.hexdigest()}-{name}{SUFFIX}"


def origin_of_file(path: Path) -> Origin:
    """Returns the origin of a store for a local file."""
    key = key_of(path)
    name = str(path.absolute())
    return origin_of_stream(name) if key is None else Origin(name, key, store_paths(path))


def origin_of_remote(file: RemoteFile) -> Origin:
    """Returns the origin of a store for a remote file, kept in the cache directory."""
    code = code_digest()
    if not file.version or code is None:
        return origin_of_stream(file.name)
    size = -1 if file.size_bytes is None else file.size_bytes
    key = Key(size, 0, "", code, file.version)
    # The name is untrusted: keep only characters that are safe in a file name.
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in file.name.rpartition("/")[2])
    return Origin(file.name, key, (_in_cache(file.url, name[-80:]),))


def origin_of_stream(name: str) -> Origin:
    """Returns the origin of a store that is private to this process."""
    unique = f"{STREAM}{secrets.token_hex(8)}{SUFFIX}"
    return Origin(name, None, (cache_directory() / unique, Path(tempfile.gettempdir()) / unique))
