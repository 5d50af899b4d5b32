"""Waits until what other threads had begun a moment ago has had time to end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

_TASKS = Path("/proc/self/task")
_BRIEF_NS = 5_000_000
"""Processor time in which a thread leaves any short piece of code."""
_LEAST_S = 0.02
_WITHOUT_PROC_S = 0.1
_LONGEST_S = 2.0


def let_threads_get_on(longest_s: float = _LONGEST_S) -> bool:
    """Wait until each other thread has run for 5 ms since now, or sleeps.

    A thread can be taken off its processor anywhere, and on a busy machine for long: no fixed time
    is enough. Where the system does not tell what threads do, this takes a tenth of a second.

    Args:
        longest_s: When to give up.

    Returns:
        Whether all of them got on.
    """
    before = _running()
    if before is None:
        if threading.active_count() > 1:
            time.sleep(_WITHOUT_PROC_S)
        return True
    if not before:
        return True
    end = time.monotonic() + longest_s
    time.sleep(_LEAST_S)
    while True:
        now = _running() or {}
        # Threads that have begun since are not in what was begun before.
        behind = [
            thread
            for thread, (is_asleep, ran_ns) in now.items()
            if thread in before and not is_asleep and ran_ns < before[thread][1] + _BRIEF_NS
        ]
        if not behind:
            return True
        if time.monotonic() > end:
            return False
        time.sleep(_LEAST_S / 4)


def _running() -> dict[int, tuple[bool, int]] | None:
    """Of each other thread whether it sleeps, and for how long it has run; None: unknown."""
    mine = threading.get_native_id()
    found = {}
    try:
        for task in _TASKS.iterdir():
            if int(task.name) == mine:
                continue
            try:
                ran_ns = int((task / "schedstat").read_text().split()[0])
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            except (ProcessLookupError, FileNotFoundError):
                continue  # it has ended
            found[int(task.name)] = (state not in "RD", ran_ns)
    except (OSError, ValueError, IndexError):
        return None
    return found
