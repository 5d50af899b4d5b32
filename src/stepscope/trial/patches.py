"""Changes that a fix makes in the training process: each is noted and can be undone."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from stepscope._package import PACKAGE

_MOST_NOTES = 20
_OURS = str(PACKAGE) + os.sep
_TORCH = os.sep + "torch" + os.sep


class Patches:
    """What the fixes of a trial changed.

    Attributes:
        applied: Where a fix took effect, for people.
        overrode: Where it overrode what the script says itself.
        refused: Where it could not be applied, and why.
    """

    def __init__(self) -> None:
        self.applied: list[str] = []
        self.overrode: list[str] = []
        self.refused: list[str] = []
        self.problems: list[str] = []
        self._after_step: list[Callable[[int], None]] = []
        self._undo: list[Callable[[], None]] = []

    # -- what fixes do ----------------------------------------------------------------------------

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace an attribute by what `wrap` makes of it, until `undo`."""
        own = vars(owner).get(name)
        original = getattr(owner, name)
        setattr(owner, name, wrap(original))

        def put_back() -> None:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)

        self._undo.append(put_back)

    def assign(self, owner: Any, name: str, value: Any) -> None:
        """Set a plain attribute until `undo`."""
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def later(self, undo: Callable[[], None]) -> None:
        """Register what undoes a change."""
        self._undo.append(undo)

    def after_step(self, act: Callable[[int], None]) -> None:
        """Call a function after each step, with the number of steps so far."""
        self._after_step.append(act)

    def arguments(
        self, owner: type, change: Callable[[dict[str, Any]], dict[str, Any] | None]
    ) -> None:
        """Change the arguments with which objects of a class are made.

        If `change` raises, or the class refuses the changed arguments, the object is made as the
        script wants it.

        Args:
            change: Is given all arguments by name, including defaults. Returns what to change;
                None for nothing.
        """
        self.replace(owner, "__init__", lambda made: self._changed(made, change))

    def _changed(
        self,
        make: Callable[..., None],
        change: Callable[[dict[str, Any]], dict[str, Any] | None],
    ) -> Callable[..., None]:
        signature = inspect.signature(make)

        @functools.wraps(make)
        def made(self_: Any, *arguments: Any, **keywords: Any) -> None:
            # A generator, such as model.parameters(), can be read only once.
            given = [list(one) if inspect.isgenerator(one) else one for one in arguments]
            keywords = {
                name: list(one) if inspect.isgenerator(one) else one
                for name, one in keywords.items()
            }
            try:
                bound = signature.bind(self_, *given, **keywords)
                passed = set(bound.arguments)
                bound.apply_defaults()
                changes = change(dict(bound.arguments))
            except Exception as error:  # noqa: BLE001 - nothing of ours may end the script
                self.refuse(f"{type(error).__name__}: {error}")
                changes = None
            if not changes:
                make(self_, *given, **keywords)
                return
            where, before = self.place(), dict(bound.arguments)
            bound.arguments.update(changes)
            try:
                make(*bound.args, **bound.kwargs)
            except Exception as error:  # noqa: BLE001 - the class does not take it
                self.refuse(f"{where}: {type(error).__name__}: {error}")
                vars(self_).clear()  # what the failed attempt left
                make(self_, *given, **keywords)
                return
            text = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            self.did(f"{where}: {text}")
            for name in sorted(passed & set(changes)):
                if before[name] != changes[name]:
                    self.override(f"{where}: {name}={before[name]!r}")

        return made

    # -- what they tell ---------------------------------------------------------------------------

    def did(self, what: str) -> None:
        """Note that a fix took effect."""
        _add(self.applied, what)

    def override(self, what: str) -> None:
        """Note that a fix overrode what the script says itself."""
        _add(self.overrode, what)

    def refuse(self, why: str) -> None:
        """Note that a fix could not be applied somewhere."""
        _add(self.refused, why)

    @staticmethod
    def place() -> str:
        """Where the script, or its framework, calls into torch: "train.py:41"."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            file = frame.f_code.co_filename
            if not file.startswith(_OURS) and _TORCH not in file and file[:1] != "<":
                return f"{os.path.basename(file)}:{frame.f_lineno}"  # noqa: PTH119
            frame = frame.f_back
        return "the script"

    # -- what their owner does --------------------------------------------------------------------

    def attempt(self, name: str, act: Callable[[], None]) -> None:
        """Apply a fix; an error is noted and does not reach the script."""
        try:
            act()
        except Exception as error:  # noqa: BLE001 - nothing of ours may end the script
            self.problems.append(f"{name}: {type(error).__name__}: {error}")

    def stepped(self, number: int) -> None:
        """A step has ended."""
        for act in self._after_step:
            self.attempt("after a step", lambda act=act: act(number))  # type: ignore[misc]

    def undo(self) -> None:
        """Restore everything, the last change first."""
        while self._undo:
            self.attempt("undo", self._undo.pop())
        self._after_step.clear()


def _add(notes: list[str], note: str) -> None:
    if len(notes) < _MOST_NOTES and note not in notes:
        notes.append(note)
