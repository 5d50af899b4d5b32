"""What the files of a store were when it was written, to notice that one has changed since.

A file of the same size and modification time is taken as unchanged, so that opening a large store
reads none of it. Any other file of the right size must have the same checksum, and so must every
small one.
Whoever can write to a store could change that as well: it detects damage, and is fast to compute.
So what others than the reader and the owner of the trace could have written is no file of a store
(`owners.py`).
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepscope.trace.store.owners import is_believed

SMALL_BYTES = 256 * 1024
"""Files up to this size are always compared by their checksums."""
_BLOCK_BYTES = 1 << 20


def contents_of(directory: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns size, modification time and checksum of files, by their relative paths."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        path = directory / name
        status = path.stat()
        found[name] = {
            "bytes": status.st_size,
            "modified_ns": status.st_mtime_ns,
            "crc32": _checksum_of(path),
        }
    return found


def is_intact(directory: Path, contents: object, names: Iterable[str]) -> bool:
    """Whether a directory holds regular files as they were.

    Args:
        directory: The directory, which may hold more.
        contents: From its manifest, and so untrusted: what `contents_of` returned.
        names: The files that there must be, and no others.
    """
    wanted = sorted(names)
    if not isinstance(contents, dict) or sorted(contents) != wanted:
        return False
    try:
        return all(_is_same(f"{directory}{os.sep}{name}", contents[name]) for name in wanted)
    except (OSError, ValueError):
        return False


def _is_same(path: str, noted: object) -> bool:
    if not isinstance(noted, dict):
        return False
    status = os.lstat(path)  # a link is not a file that we wrote
    if not stat.S_ISREG(status.st_mode) or status.st_size != noted.get("bytes"):
        return False
    if not is_believed(status, path):
        return False
    is_large = status.st_size > SMALL_BYTES
    if is_large and status.st_mtime_ns == noted.get("modified_ns"):
        return True
    return _checksum_of(Path(path)) == noted.get("crc32")


def _checksum_of(path: Path) -> int:
    checksum, file_bytes = 0, path.stat().st_size
    crc32 = zlib.crc32
    if file_bytes > SMALL_BYTES:  # what is faster by far pays for being imported
        from isal.isal_zlib import crc32
    block = memoryview(bytearray(min(_BLOCK_BYTES, file_bytes + 1)))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            checksum = crc32(block[:size], checksum)
    return checksum


def is_own_directory(path: Path | str) -> bool:
    """Whether a path is a directory that is believed, and not a link to one."""
    try:
        status = os.lstat(path)
        return stat.S_ISDIR(status.st_mode) and is_believed(status, path)
    except (OSError, ValueError):
        return False
