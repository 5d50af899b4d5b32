"""Ranks that do not record wait, outside of collectives, for those that save a window.

If only some ranks record, the others would sit in the next collective while those save their
window, and a process group with a short timeout would end the job. So they wait at the step
boundary instead, where no timeout runs. This is not a barrier: every wait has a limit, nobody waits
for a rank that does not record, and a store that fails ends all waiting.
"""

from __future__ import annotations

import logging
import time

from stepscope.capture.together.shared_store import SharedStore

log = logging.getLogger("stepscope")

_LOOK_S = 0.01
_GRACE_S = 2.0
"""How long to wait for a recording rank to reach the boundary: it may be waiting for us."""


class PauseTogether:
    """Announces pauses to the other ranks, with one counter per stage of each window.

    Args:
        store: The process group's store.
        limit_s: How long a rank waits for the pauses of others at most, in seconds.
    """

    def __init__(self, store: SharedStore, limit_s: float) -> None:
        self._store = store
        self._limit_s = limit_s

    def open(self, first_step: int) -> None:
        """Announce that this rank will record the window that begins at this step."""
        self._store.add(f"pause/{first_step}/open", 1)

    def begin(self, first_step: int) -> None:
        """Announce that this rank begins its pause."""
        self._store.add(f"pause/{first_step}/begun", 1)

    def end(self, first_step: int) -> None:
        """Announce that this rank has ended its pause, or will have none."""
        self._store.add(f"pause/{first_step}/done", 1)

    def wait(self, first_step: int) -> float:
        """Wait while others pause; returns for how long, in seconds."""
        started = time.monotonic()
        opened = self._store.add(f"pause/{first_step}/open", 0)
        while opened > 0 and self._store.is_usable:
            done = self._store.add(f"pause/{first_step}/done", 0)
            if done >= opened or done < 0:
                break
            begun = self._store.add(f"pause/{first_step}/begun", 0)
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


class Pauses:
    """Connects to the other ranks as soon as there is a process group.

    Args:
        run_name: Name of the run.
        world_size: Number of ranks; a single rank announces nothing.
        limit_s: How long a rank waits for the pauses of others at most, in seconds; 0 to disable.
    """

    def __init__(self, run_name: str, world_size: int, limit_s: float) -> None:
        self._run_name = run_name
        self._is_wanted = world_size > 1 and limit_s > 0
        self._limit_s = limit_s
        self._words: PauseTogether | None = None

    def words(self) -> PauseTogether | None:
        """The connection; None without a process group or other ranks."""
        if self._words is None and self._is_wanted:
            store = SharedStore.connect(self._run_name, own_connection=False)
            if store is not None:
                self._words = PauseTogether(store, self._limit_s)
        return self._words
