"""The process group's key-value store, and ranks that wait for each other by it.

It is used with care: short calls, no waiting inside one, no errors.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger("stepscope")

_Result = TypeVar("_Result")


class SharedStore:
    """What all ranks of a job can read and write while a process group is up.

    The first failure ends its use: a store that is gone must not cost every later step a timeout.

    Args:
        prefix: Prefix of every key, which keeps runs apart.
        is_own: Whether nobody else uses the connection, so that a call may wait.
    """

    def __init__(self, store: Any, prefix: str, *, is_own: bool = False) -> None:
        self.store = store
        self.prefix = prefix
        self.is_own = is_own
        self.is_usable = True

    @classmethod
    def connect(cls, run_name: str, *, own_connection: bool) -> SharedStore | None:
        """The default process group's store; None without a group."""
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        try:
            store: Any = distributed.distributed_c10d._get_default_store()
            is_own = own_connection and hasattr(store, "clone")
            return cls(store.clone() if is_own else store, f"stepscope/{run_name}/", is_own=is_own)
        except Exception as error:  # noqa: BLE001 - a store can fail in many ways
            log.debug("stepscope: no store: %s", error)
            return None

    def put(self, key: str, value: bytes) -> bool:
        """Set a key; False if the store failed."""
        return self._try(lambda: self.store.set(self.prefix + key, value) or True, False)

    def get(self, key: str) -> bytes | None:
        """The value of a key, or None if it is not set or the store failed."""

        def read() -> bytes | None:
            name = self.prefix + key
            return bytes(self.store.get(name)) if self.store.check([name]) else None

        return self._try(read, None)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter and return it; 0 reads it. Returns -1 if the store failed."""
        return self._try(lambda: int(self.store.add(self.prefix + key, amount)), -1)

    def _try(self, call: Callable[[], _Result], otherwise: _Result) -> _Result:
        if not self.is_usable:
            return otherwise
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - a store can fail in many ways
            self.is_usable = False
            log.warning("stepscope: the process group's store is gone: %s", error)
            return otherwise


_LOOK_S = 0.01
_GRACE_S = 2.0
"""How long to wait for a recording rank to reach the boundary: it may be waiting for us."""


class PauseTogether:
    """Lets ranks that do not record wait, outside of collectives, for those that save a window.

    If only some ranks record, the others would sit in the next collective while those save their
    window, and a process group with a short timeout would end the job. So they wait at the step
    boundary instead, where no timeout runs. This is not a barrier: every wait has a limit, nobody
    waits for a rank that does not record, and a store that fails ends all waiting. Pauses are
    announced with one counter per stage of each window.

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
