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

    It is shared by the whole process on purpose: it stands for something that exists only once.
    What a fork inherits is its parent's claim, not its own.
    """

    _lock = threading.Lock()
    _owner: Any = None
    _process_id = 0

    @classmethod
    def take(cls, owner: object) -> bool:
        """Claim the process; False if another owner holds it."""
        with cls._lock:
            if cls._current() not in (None, owner):
                return False
            cls._owner, cls._process_id = owner, os.getpid()
            return True

    @classmethod
    def holder(cls) -> Any:
        """The object that holds the claim, or None."""
        with cls._lock:
            return cls._current()

    @classmethod
    def give_back(cls, owner: object) -> None:
        """Release the claim; does nothing if `owner` does not hold it."""
        with cls._lock:
            if cls._owner is owner:
                cls._owner = None

    @classmethod
    def _current(cls) -> Any:
        return cls._owner if cls._process_id == os.getpid() else None
