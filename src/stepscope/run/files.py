"""Files of a run: written so that readers never see a partial one, and a kill costs at most a line.

Only regular files are opened: a run directory can come from anyone. A named pipe in it would keep a
reader waiting for ever, a device would never end, and a link could lead to any file of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stepscope.errors import UnreadableInputError
from stepscope.run.figures import describe_error

_DIGEST_BLOCK_BYTES = 1 << 20


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; on success, rename it into place.

    Args:
        path: Path of the finished file. Its folder is created if it is missing.

    Yields:
        A path in the same folder, to be written by the block. It is removed if the block raises, so
        that no partial file remains.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that readers see either the old content or the new."""
    with replacing(path) as temporary:
        temporary.write_bytes(data)


def numbered(path: Path) -> Iterator[Path]:
    """Paths to choose a free one from: this one, and with numbers at its end, from `-2` on."""
    yield path
    for number in range(2, 10_000):
        yield path.with_name(f"{path.name}-{number}")
    raise FileExistsError(f"{path}: too many have this name")


def digest_of(path: Path) -> str:
    """The file's BLAKE2b digest of 16 bytes, in hexadecimal."""
    digest = hashlib.blake2b(digest_size=16)
    block = memoryview(bytearray(min(_DIGEST_BLOCK_BYTES, path.stat().st_size + 1)))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
    return digest.hexdigest()


class LineFile:
    """An append-only file of lines that survives a kill of its process.

    Lines are passed to the operating system at once, unbuffered and as one write, so that a killed
    process leaves at most one incomplete line. Nothing raises after the file was opened: the first
    error is kept in `problem`, and later lines are counted in `lost_lines`.

    Attributes:
        lost_lines: Number of lines that could not be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = _open_for_lines(path)
        self._has_torn_line = False
        self.problem: str | None = None
        self.lost_lines = 0

    def write(self, *lines: bytes) -> None:
        """Append lines, each of which must end with a newline, in one write."""
        if lines:
            self._put(b"".join(lines), len(lines))

    def reopen_if_removed(self) -> bool:
        """Start a new file if this one was deleted; returns whether it was."""
        if self._descriptor is None or self._path.exists():
            return False
        descriptor = _open_for_lines(self._path)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
        self._descriptor = descriptor
        return True

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _put(self, data: bytes, lines: int) -> None:
        if self._descriptor is None:
            self.lost_lines += lines
            return
        if self._has_torn_line:
            data = b"\n" + data  # so that the partial line before it damages no other
            lines += 1
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            self._has_torn_line = False
        except OSError as error:
            self.lost_lines += lines - data[:written].count(b"\n")
            self._has_torn_line = written > 0 and data[written - 1 : written] != b"\n"
            if self.problem is None:
                self.problem = describe_error(error)


def _open_for_lines(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(
        path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o644
    )


_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_DO_NOT_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading, without buffering more than reads ask for.

    Raises:
        OSError: There is no such file, it cannot be opened, it is not a regular file, or it is a
            link that leads out of its directory. `strerror` says which.
    """
    if path.is_symlink() and not _stays_inside(path):
        raise OSError(errno.EINVAL, "a link that leads out of its directory", str(path))
    _check(path.stat().st_mode, path)
    # It may have been replaced since: neither wait for the other end of a pipe, nor read from it.
    opened = os.fdopen(os.open(path, os.O_RDONLY | _DO_NOT_WAIT | _BINARY), "rb")
    try:
        _check(os.fstat(opened.fileno()).st_mode, path)
    except BaseException:
        opened.close()
        raise
    return opened


def exists(path: Path) -> bool:
    """Whether there is something at a path that the user gave.

    Raises:
        UnreadableInputError: That cannot be known: a folder on the way to it is closed to this
            user, or the name is too long.
    """
    try:
        return path.exists()
    except OSError as error:
        raise UnreadableInputError(
            f"{path}: cannot be opened: {error.strerror or error}"
        ) from error


def is_regular(path: Path) -> bool:
    """Whether `open_regular` would open a path."""
    try:
        if path.is_symlink() and not _stays_inside(path):
            return False
        return stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Returns the content of a regular file.

    Raises:
        OSError: As `open_regular`; or it is larger than `most_bytes`.
    """
    with open_regular(path) as opened:
        # To read up to a limit, Python allocates all of the limit first: hundreds of megabytes.
        size = min(os.fstat(opened.fileno()).st_size, most_bytes)
        data = opened.read(size + 1)
        if len(data) > size:  # larger than the limit, or it grows meanwhile
            data += opened.read(most_bytes + 1 - len(data))
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes // 1_000_000} MB", str(path))
    return data


def kind_of(mode: int) -> str:
    """Names what a path that is not a regular file is, by its mode: "a named pipe"."""
    return next((word for is_kind, word in _KINDS if is_kind(mode)), "something else")


def _check(mode: int, path: Path) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"{kind_of(mode)}, not a file", str(path))


def _stays_inside(path: Path) -> bool:
    try:
        return path.resolve().is_relative_to(path.parent.resolve())
    except RuntimeError:  # a loop of links
        return False
