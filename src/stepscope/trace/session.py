"""Sessions of traces, and of what is made of one: what is known so far, and who waits for what.

Tables of a trace never change, so whatever is worked out from them holds until the session is
closed. It is worked out once, by the thread that asks first; others that ask wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class Session:
    """Owns what is known about its holder, which never changes, and the locks of that.

    There is one lock for each key. A thread that holds one may take it again. A copy knows the
    same, and begins without locks.
    """

    def __init__(self, known: Mapping[Hashable, Any] | None = None) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Hashable, threading.RLock] = {}
        self._known: dict[Hashable, Any] = dict(known or {})

    def __reduce__(self) -> tuple[type[Session], tuple[dict[Hashable, Any]]]:
        return Session, (self._known,)

    def lock(self, key: Hashable) -> threading.RLock:
        """Returns the lock of a key, for what grows under it."""
        with self._guard:
            return self._locks.setdefault(key, threading.RLock())

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Returns what is known under a key; makes it first if nothing is.

        Other threads that ask for the same key wait for it.
        """
        with self.lock(key):
            if key not in self._known:
                self._known[key] = make()
            found: Value = self._known[key]
            return found

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


class kept(Generic[Value]):  # noqa: N801 - used as a decorator, like `property`
    """A property that is worked out once, and kept in the session of its holder."""

    def __init__(self, func: Callable[[Any], Value]) -> None:
        self.func = func
        self.__doc__ = func.__doc__

    @overload
    def __get__(self, holder: None, owner: type[Any] | None = None) -> kept[Value]: ...

    @overload
    def __get__(self, holder: object, owner: type[Any] | None = None) -> Value: ...

    def __get__(self, holder: Any, owner: type[Any] | None = None) -> Any:
        if holder is None:
            return self
        session: Session = holder.session
        return session.once(self.func.__name__, lambda: self.func(holder))
