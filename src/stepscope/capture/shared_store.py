"""The process group's key-value store, used with care: short calls, no waiting, no errors."""

from __future__ import annotations

import logging
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
