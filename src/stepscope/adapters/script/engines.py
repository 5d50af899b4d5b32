"""Wraps the engines of DeepSpeed: their construction, and the calls that make up a step.

Such an engine calls its optimizer once per parameter group (ZeRO 1 and 2) or once per part of a
group (ZeRO 3), once more during its construction (BF16), and not at all if an overflow makes it
skip the update. Its own count (`global_steps`) is right in every case.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from stepscope.capture.containment import attempt
from stepscope.capture.steps.replacements import Replacements, when_imported

ENGINE, PIPELINE = "DeepSpeedEngine", "PipelineEngine"
_MODULES = {ENGINE: "deepspeed.runtime.engine", PIPELINE: "deepspeed.runtime.pipe.engine"}


def engines_so_far() -> list[Any]:
    """The engines of this process, if DeepSpeed is imported. Looks at all objects: use it once."""
    kind = getattr(sys.modules.get(_MODULES[ENGINE]), ENGINE, None)
    if not isinstance(kind, type):
        return []
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


class EngineFollower:
    """What is made of engines; nothing, by default."""

    def making_begins(self) -> None:
        """An engine is about to be constructed: the steps of its optimizer train nothing."""

    def making_ends(self) -> None:
        """It has been constructed, or could not be."""

    def made(self, engine: Any) -> None:
        """An engine has been constructed."""

    def entering(self, engine: Any, name: str) -> AbstractContextManager[object] | None:
        """An engine's method is called, by no other one; returns what to enter around it, if any.

        None: the call is not followed.
        """

    def left(self, engine: Any, name: str, *, has_stepped: bool) -> None:
        """Such a call has returned, and the engine has counted a step in it or not."""


class Engines:
    """The wrapped engines. While one is inside a call, what steps does so for the engine."""

    def __init__(self, follower: EngineFollower) -> None:
        self.is_inside = False
        self._follower = follower
        self._is_over = False
        self._making = 0
        self._replacements = Replacements()

    def wrap_all(self, methods: Mapping[str, Iterable[str]] | None = None) -> None:
        """Wrap the constructors of all engines, and methods by class, once they are imported."""
        for name, module in _MODULES.items():
            wrap = functools.partial(self._wrap_class, name, (methods or {}).get(name, ()))
            self._replacements.undo_by(when_imported(module, wrap))

    def wrap(self, engine: Any, methods: Iterable[str]) -> None:
        """Wrap methods of one engine, those that it has."""
        for name in methods:
            if hasattr(engine, name):
                self._replacements.replace(
                    engine, name, functools.partial(self._around_call, name, engine)
                )

    def restore(self) -> None:
        """Restore everything, unless other code wrapped it after us."""
        self._is_over = True
        self._replacements.restore()

    def forget(self) -> None:
        """Reset the state after a fork: what happens in the parent does not happen here."""
        self.is_inside = False
        self._making = 0

    def _wrap_class(self, name: str, methods: Iterable[str], module: ModuleType) -> None:
        kind = getattr(module, name)
        self._replacements.replace(kind, "__init__", self._around_making)
        for method in methods:
            self._replacements.replace(
                kind, method, functools.partial(self._around_call, method, None)
            )

    def _around_making(self, make: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(make)
        def made(engine: Any, *arguments: Any, **keywords: Any) -> None:
            # A pipeline's constructor calls that of its base: it is complete after the outer one.
            if self._making or self._is_over:
                make(engine, *arguments, **keywords)
                return
            self._making += 1
            attempt(self._follower.making_begins)
            try:
                make(engine, *arguments, **keywords)
            finally:
                self._making -= 1
                attempt(self._follower.making_ends)
            attempt(self._follower.made, engine)

        return made

    def _around_call(
        self, name: str, engine: Any, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Wrap a method of an engine, or of a class of engines (`engine` is None)."""

        @functools.wraps(original)
        def called(*arguments: Any, **keywords: Any) -> Any:
            one = arguments[0] if engine is None else engine
            around = None
            if not self._is_over and not self.is_inside:
                around = attempt(self._follower.entering, one, name)
            if around is None:
                return original(*arguments, **keywords)
            # The engine counts its optimizer steps itself, including those that an overflow
            # skipped.
            before = one.global_steps
            self.is_inside = True
            try:
                with around:
                    result = original(*arguments, **keywords)
            finally:
                self.is_inside = False
            self._follower.left(one, name, has_stepped=one.global_steps != before)
            return result

        return called
