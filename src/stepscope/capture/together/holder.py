"""One profiler per process: torch can serve only one at a time."""

from __future__ import annotations

import os
import threading
from typing import Any

from stepscope.errors import UsageError


class NestedProfilerError(UsageError, RuntimeError):
    """A second profiler in a process that already has one: torch can serve only one at a time."""


class ProcessClaim:
    """Which object owns the process's profiling. There is one claim per process.

    Deliberately shared by the whole process: it stands for something of which the process has
    only one. What a fork has taken over from its parent is the parent's, and no claim here.
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
        """What holds the claim; None where nothing does."""
        with cls._lock:
            return cls._current()

    @classmethod
    def give_back(cls, owner: object) -> None:
        """Let go of the claim; nothing happens if `owner` does not hold it."""
        with cls._lock:
            if cls._owner is owner:
                cls._owner = None

    @classmethod
    def _current(cls) -> Any:
        return cls._owner if cls._process_id == os.getpid() else None
