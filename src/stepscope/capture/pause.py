"""Ranks that do not record wait, outside of collectives, for those that save a window.

If only some ranks record, the others would sit in the next collective while those save their
window, and a process group with a short timeout would end the job. So they wait at the step
boundary instead, where no timeout runs. This is not a barrier: every wait has a limit, nobody waits
for a rank that does not record, and a store that fails ends all waiting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from stepscope.capture.shared_store import SharedStore

log = logging.getLogger("stepscope")

_LOOK_S = 0.01
_GRACE_S = 2.0
"""How long to wait for a recording rank to reach the boundary: it may be waiting for us."""


class PauseTogether:
    """Announces pauses to the other ranks, with one counter per stage of each window.

    Args:
        connect: Returns the process group's store, or None until there is a process group.
        limit_s: How long a rank waits for the pauses of others at most, in seconds.
    """

    def __init__(self, connect: Callable[[], SharedStore | None], limit_s: float) -> None:
        self._connect = connect
        self._connected: SharedStore | None = None
        self._limit_s = limit_s

    def announce(self, first_step: int, stage: str) -> None:
        """Announce a stage of the window that begins at this step.

        Args:
            stage: "open" if this rank will record it, "begun" if its pause begins, "done" if that
                has ended, or if there will be none.
        """
        self._count(first_step, stage, 1)

    def wait(self, first_step: int) -> float:
        """Wait while others pause; returns for how long, in seconds."""
        started = time.monotonic()
        opened = self._count(first_step, "open")
        while opened > 0:
            done = self._count(first_step, "done")
            if done >= opened or done < 0:
                break
            begun = self._count(first_step, "begun")
            waited = time.monotonic() - started
            if waited > (self._limit_s if begun > done else min(_GRACE_S, self._limit_s)):
                log.warning(
                    "stepscope: continued after waiting %.1f s for %d recording ranks",
                    waited,
                    opened - done,
                )
                break
            time.sleep(_LOOK_S)
        return time.monotonic() - started

    def _count(self, first_step: int, stage: str, amount: int = 0) -> int:
        """Add to a counter and return it; -1 if the store failed or there is none."""
        if self._connected is None:
            self._connected = self._connect()
        if self._connected is None:
            return -1
        return self._connected.add(f"pause/{first_step}/{stage}", amount)
