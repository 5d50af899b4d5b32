"""What a store is made of, by which code, and where it may stand."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from stepscope.errors import UnreadableInputError
from stepscope.trace.source.remote import RemoteFile
from stepscope.trace.store.code import code_digest
from stepscope.trace.store.directory import STREAM, SUFFIX

_PROBE_BYTES = 64 * 1024


@dataclass(frozen=True)
class Key:
    """What a store was made of, and by what; it is valid only for the same of both.

    Attributes:
        size_bytes: Of the file as stored; -1 where its service does not say.
        modified_ns: When it was changed last, in Unix time; 0 for a remote file.
        probe: A digest of its beginning, middle and end.
        code: A digest of the code that read the file (`code_digest`).
        version: What a remote file's service says tells versions apart; empty for a local one.
    """

    size_bytes: int
    modified_ns: int
    probe: str
    code: str
    version: str = ""


@dataclass(frozen=True)
class Origin:
    """What a store is made of.

    Attributes:
        name: The trace's absolute path, or its URL, for the manifest.
        key: None where nothing tells its content, or the code that reads it, from another (a
            stream, a server that does not say, a frozen program): its store serves this process
            alone.
        paths: Where the store may stand, the best first.
    """

    name: str
    key: Key | None
    paths: tuple[Path, ...]


def key_of(path: Path) -> Key | None:
    """The key of a trace file; None where nothing tells by which code it is read.

    Raises:
        UnreadableInputError: It cannot be read.
    """
    code = code_digest()
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
    if code is None:
        return None
    return Key(status.st_size, status.st_mtime_ns, digest.hexdigest(), code)


def cache_directory() -> Path:
    """Where stores go that cannot stand beside their trace (`STEPSCOPE_CACHE` overrides it)."""
    override = os.environ.get("STEPSCOPE_CACHE")
    if override:
        return Path(override)
    import platformdirs

    return Path(platformdirs.user_cache_dir("stepscope")) / "traces"


def store_paths(path: Path) -> tuple[Path, Path]:
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
    key = key_of(path)
    name = str(path.absolute())
    return origin_of_stream(name) if key is None else Origin(name, key, store_paths(path))


def origin_of_remote(file: RemoteFile) -> Origin:
    """A remote file as what a store is made of, in the cache directory.

    Its service is asked for the content at three places, where it says enough for a key.

    Raises:
        UnreadableInputError: It cannot be read.
    """
    code = code_digest()
    if not file.version or code is None:
        return origin_of_stream(file.name)
    size = -1 if file.size_bytes is None else file.size_bytes
    key = Key(size, 0, file.probe(_PROBE_BYTES), code, file.version)
    # A name comes from a stranger: only what is harmless in a file's name stays.
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in file.name.rpartition("/")[2])
    return Origin(file.name, key, (_in_cache(file.url, name[-80:]),))


def origin_of_stream(name: str) -> Origin:
    """Something that can be read once, as what a store for this process alone is made of."""
    unique = f"{STREAM}{secrets.token_hex(8)}{SUFFIX}"
    return Origin(name, None, (cache_directory() / unique, Path(tempfile.gettempdir()) / unique))
