"""Whether what a store says is believed: whoever can write to it decides what reports say.

A store next to a trace is believed if it belongs to the reader or to the owner of the trace, who
could have changed the trace as well, and nobody else may write to it. Any other one is read past.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".stepscope"
"""What the name of a store ends with, after that of its trace."""


@dataclass
class Belief:
    """Whether stores are believed in this process.

    Attributes:
        was_asked: Whether a store, or a part of one, was believed so far.
        is_lost: Whether none is believed any more, since the contents of one do not hold.
    """

    was_asked: bool = False
    is_lost: bool = False


BELIEF = Belief()
_LOG = logging.getLogger(__name__)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def is_believed(status: os.stat_result, path: Path | str) -> bool:
    """Whether only the reader or the owner of the trace can have written something.

    Args:
        path: Where it is: in the directory of a store, or that directory itself.
    """
    if BELIEF.is_lost:
        return False
    has_owner = hasattr(os, "getuid")
    if has_owner and (status.st_mode & _OTHERS_WRITE or status.st_uid not in _owners(str(path))):
        return False
    BELIEF.was_asked = True
    return True


def _owners(path: str) -> set[int]:
    owners = {os.getuid()}
    trace, suffix, _ = path.rpartition(SUFFIX)
    if suffix:
        with contextlib.suppress(OSError, ValueError):
            owners.add(os.stat(trace).st_uid)  # noqa: PTH116 - asked for each file of a store
    return owners


def keep_to_owner(directory: Path) -> None:
    """Lets nobody else write to a directory and what it holds, whatever the user's mask allows."""
    for folder, _, names in os.walk(directory):
        for path in (folder, *(f"{folder}{os.sep}{name}" for name in names)):
            mode = stat.S_IMODE(os.lstat(path).st_mode)
            if mode & _OTHERS_WRITE:
                os.chmod(path, mode & ~_OTHERS_WRITE)  # noqa: PTH101


@functools.cache
def warn_not_trusted(store: Path) -> None:
    """Says, once, that a store is not used."""
    _LOG.warning(
        "%s: not used, since another user could have written it; the trace is read instead", store
    )
