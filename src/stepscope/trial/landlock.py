"""Keeps a command, and everything that it starts, from writing outside some paths.

Landlock (Linux 6.2 and later) lets a thread give up rights for itself and for whatever it starts
afterwards, in any language. So a thread of its own gives up writing, starts the command and ends;
the rest of this process keeps its rights. Elsewhere commands start unconfined.

The command also loses the right to gain privileges, as by sudo, which the kernel requires.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Started = TypeVar("Started")

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_VERSION_FLAG, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
_LEAST_VERSION = 3
"""The first that knows of truncation, and that lets files move between folders."""
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_WRITE = _WRITE_FILE | sum(1 << bit for bit in range(4, 15))
"""Writing, removing, creating, linking, moving and truncating."""


def start_confined(start: Callable[[], Started], writable: Iterable[Path]) -> tuple[Started, bool]:
    """Start a command that can write to some paths only, and below them.

    Args:
        writable: The paths. Those that do not exist are left out.

    Returns:
        What `start` returns, and whether the command is confined.

    Raises:
        BaseException: What `start` raises.
    """
    if not is_available():
        return start(), False
    found: list[tuple[Started, bool]] = []
    failed: list[BaseException] = []

    def act() -> None:
        try:
            is_confined = _confine_this_thread(writable)
            found.append((start(), is_confined))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=act, name="stepscope-start")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


@functools.cache
def is_available() -> bool:
    """Whether this system can confine a command."""
    if sys.platform != "linux":
        return False
    return _system_call(_CREATE_RULESET, None, 0, _VERSION_FLAG) >= _LEAST_VERSION


def _confine_this_thread(writable: Iterable[Path]) -> bool:
    attributes = ctypes.create_string_buffer(struct.pack("=Q", _WRITE), 8)
    ruleset = _system_call(_CREATE_RULESET, attributes, 8, 0)
    if ruleset < 0:
        return False
    try:
        for path in writable:
            with suppress(OSError):
                _allow(ruleset, path)
        if ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return _system_call(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: Path) -> None:
    rights = _WRITE if path.is_dir() else _WRITE_FILE | _TRUNCATE
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, opened), 12)
        _system_call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(opened)


def _system_call(number: int, *arguments: object) -> int:
    """The result of a system call; -1 if it failed."""
    values = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return int(ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *values))
