"""Opens files of a run, but nothing that only looks like one.

A run directory can come from anyone. A named pipe in it would keep a reader waiting for ever, a
device would never end, and a link could lead to any file of the machine.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from stepscope.errors import UnreadableInputError

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
        data = opened.read(most_bytes + 1)
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
