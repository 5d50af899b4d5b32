"""One profiler per process: torch supports only one at a time."""

from __future__ import annotations

import os
import threading
from typing import Any

from stepscope.errors import UsageError


class NestedProfilerError(UsageError, RuntimeError):
    """A second profiler in a process that already has one: torch supports only one at a time."""


class ProcessClaim:
    """The claim of one object on the process's profiling. There is one claim per process.

    It is shared by the whole process on purpose: it stands for something that exists only once. A
    fork has none: its parent's owner is asked to forget what it was recording.
    """

    _lock = threading.Lock()
    _owner: Any = None

    @classmethod
    def take(cls, owner: object) -> bool:
        """Claim the process; False if another owner holds it."""
        with cls._lock:
            if cls._owner not in (None, owner):
                return False
            cls._owner = owner
            return True

    @classmethod
    def holder(cls) -> Any:
        """The object that holds the claim, or None."""
        return cls._owner

    @classmethod
    def give_back(cls, owner: object) -> None:
        """Release the claim; does nothing if `owner` does not hold it."""
        with cls._lock:
            if cls._owner is owner:
                cls._owner = None

    @classmethod
    def _after_fork(cls) -> None:
        """In a fork: the lock may have been held, by a thread that does not exist here."""
        owner, cls._owner, cls._lock = cls._owner, None, threading.Lock()
        if owner is not None:
            owner.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ProcessClaim._after_fork)
