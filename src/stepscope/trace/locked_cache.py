"""Values cached on an object and computed once, even if several threads ask at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar, overload

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class KeyLocks:
    """One lock for each key. A thread that holds one may take it again."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, threading.RLock] = {}

    def lock(self, key: Hashable) -> threading.RLock:
        """Returns the lock of a key."""
        with self._guard:
            return self._locks.setdefault(key, threading.RLock())

    def get_or_make(self, known: dict[Key, Any], key: Key, make: Callable[[], Value]) -> Value:
        """Returns the value of a key; makes it first if it is not known yet.

        Other threads that ask for the same key wait for it.
        """
        with self.lock(key):
            if key not in known:
                known[key] = make()
            found: Value = known[key]
            return found


def locks_of(holder: object) -> KeyLocks:
    """Returns the locks of what is cached on an object. Whoever caches uses keys of its own."""
    locks: KeyLocks = holder.__dict__.setdefault("_key_locks", KeyLocks())
    return locks


class locked_cached_property(cached_property[Value]):  # noqa: N801 - used as a decorator, like its base
    """A `cached_property` that other threads wait for while one computes it.

    The base class computes it several times since Python 3.12, and before that lets only one thread
    compute the property of any object.
    """

    @overload
    def __get__(
        self, instance: None, owner: type[Any] | None = None
    ) -> locked_cached_property[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Value: ...

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        if instance is None:
            return self
        known, name = instance.__dict__, self.func.__name__
        return locks_of(instance).get_or_make(known, name, lambda: self.func(instance))
