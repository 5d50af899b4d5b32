"""Functions and methods that are replaced for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

_INSIDE = "_stepscope_inside"
"""Attribute of a replacement that was restored while another one lay over it: what it replaced."""


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
            # If other code wrapped it again, ours stays inside and does nothing. What is inside of
            # that is restored with it.
            if getattr(owner, name) is not wrapped:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(wrapped, _INSIDE, (original, is_inherited))
                return
            inside = (original, is_inherited)
            while (deeper := getattr(inside[0], _INSIDE, None)) is not None:
                inside = deeper
            if inside[1]:
                delattr(owner, name)
            else:
                setattr(owner, name, inside[0])

        self._undo.append(restore)

    def undo_by(self, undo: Callable[[], None]) -> None:
        """Call this, too, to restore everything."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Restore everything, the last first."""
        while self._undo:
            self._undo.pop()()
