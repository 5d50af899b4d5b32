"""The newest steps of a run, in a file that survives the death of its process: `steps.ring`.

The process that trains puts each step there at once, by a copy into mapped memory, and one of its
threads writes the lines of `steps.jsonl` once a second. So a killed process leaves steps here that
are not in that file. Rows are JSON, a line each, and older ones are overwritten:
`[[...the fields of a step...], start_ns]`. The start at the end shows that the row is whole.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Any, Protocol

import orjson

RING_BYTES = 1 << 19
_MAPPED = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs", "overlay", "f2fs"})
"""File systems where a page that was reserved can always be written: elsewhere, a full disk or a
lost server would end the process with a signal."""


class Ring(Protocol):
    """Memory of `RING_BYTES` bytes that outlives the process."""

    def __setitem__(self, place: slice, data: bytes, /) -> None:
        """Write bytes to a place of their size."""

    def close(self) -> None:
        """Free it."""


class _WrittenRing:
    """A file that is written by calls to the system.

    Args:
        descriptor: The open file.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __setitem__(self, place: slice, data: bytes) -> None:
        os.pwrite(self._descriptor, data, place.start)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def create_ring(path: Path) -> Ring | None:
    """A new ring; None where the system has none, or no space for it."""
    if not hasattr(os, "posix_fallocate"):
        return None
    descriptor = -1
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.posix_fallocate(descriptor, 0, RING_BYTES)
        if _file_system(path) not in _MAPPED:
            return _WrittenRing(descriptor)
        ring = mmap.mmap(descriptor, RING_BYTES)
    except (OSError, ValueError):
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                path.unlink()
            os.close(descriptor)
        return None
    os.close(descriptor)
    return ring


def read_ring(path: Path) -> list[list[Any]]:
    """The rows of a ring that are whole, by their start; none if there is no ring."""
    try:
        with path.open("rb") as file:
            data = file.read(RING_BYTES)
    except OSError:
        return []
    rows = {}
    for line in data.split(b"\n"):
        with contextlib.suppress(ValueError, TypeError, IndexError):
            row, start_ns = orjson.loads(line)
            if isinstance(row, list) and isinstance(start_ns, int) and row[1] == start_ns:
                rows[start_ns] = row
    return [rows[start_ns] for start_ns in sorted(rows)]


def _file_system(path: Path) -> str:
    """The kind of file system that a path lies on; empty if unknown."""
    place = os.path.realpath(path)
    kind, longest = "", -1
    try:
        lines = Path("/proc/self/mounts").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        words = line.split(" ")
        point = words[1].replace("\\040", " ") if len(words) > 2 else ""
        is_above = point in {"/", place} or place.startswith(f"{point}/")
        if point and is_above and len(point) >= longest:
            kind, longest = words[2], len(point)
    return kind
