"""A session of work on one trace: what is known so far, and who waits for what.

Tables of a trace never change, so whatever is worked out from them holds until the session is
closed. It is worked out once, by the thread that asks first; others that ask wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar, overload

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class KeyLocks:
    """One lock for each key. A thread that holds one may take it again. A copy begins with none."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, threading.RLock] = {}

    def __reduce__(self) -> tuple[type[KeyLocks], tuple[()]]:
        return KeyLocks, ()

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
        return self if instance is None else self._answer(instance)

    def _answer(self, instance: Any) -> Value:
        known, name = instance.__dict__, self.func.__name__
        return locks_of(instance).get_or_make(known, name, lambda: self.func(instance))


class Session:
    """Owns what is known about a trace, and the locks of that."""

    def __init__(self) -> None:
        self._locks = KeyLocks()
        self._known: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Returns what is known under a key; makes it first if nothing is."""
        return self._locks.get_or_make(self._known, key, make)

    def lock(self, key: Hashable) -> threading.RLock:
        """Returns the lock of a key, for what grows under it."""
        return self._locks.lock(key)

    def find(self, key: Hashable) -> Any:
        """Returns what is known under a key; None if nothing is."""
        return self._known.get(key)

    def keep(self, key: Hashable, value: object) -> None:
        """Makes a value known."""
        self._known[key] = value

    def know_all(self, other: Session) -> None:
        """Makes known all that another session of the same tables knows."""
        self._known |= other._known

    def close(self) -> None:
        """Frees all that is known. What is asked later is worked out again."""
        self._known.clear()


class kept(locked_cached_property[Value]):  # noqa: N801 - used as a decorator, like `property`
    """A property that is worked out once, and kept in the session of its holder."""

    def _answer(self, instance: Any) -> Value:
        session: Session = instance.session
        return session.once(self.func.__name__, lambda: self.func(instance))
