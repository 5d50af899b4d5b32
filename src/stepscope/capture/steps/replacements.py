"""Functions and methods that are replaced for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Replacements:
    """What was replaced, and how to restore it."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def __bool__(self) -> bool:
        """Whether there is anything to restore."""
        return bool(self._undo)

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Put a wrapped function in the place of the original."""
        original = getattr(owner, name)
        self.put(owner, name, original, wrap(original))

    def put(self, owner: Any, name: str, original: Any, wrapped: Any) -> None:
        """Put what was wrapped already in the place of the original."""
        is_inherited = name not in vars(owner)
        setattr(owner, name, wrapped)

        def restore() -> None:
            # If other code wrapped it again, ours stays inside and does nothing.
            if getattr(owner, name) is not wrapped:
                return
            if is_inherited or _inherits(owner, name, original):
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        self._undo.append(restore)

    def undo_by(self, undo: Callable[[], None]) -> None:
        """Call this, too, to restore everything."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Restore everything, the last first."""
        while self._undo:
            self._undo.pop()()


def _inherits(owner: Any, name: str, original: Any) -> bool:
    """Whether a class has the original from another one: a replacement before hid that."""
    bases = owner.__mro__[1:] if isinstance(owner, type) else ()
    return any(vars(base).get(name) is original for base in bases)
