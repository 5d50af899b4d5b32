"""How Stepscope gets into torch and frameworks, and out again.

Functions and methods are replaced for a while, modules are waited for without importing them, and
torch.compile is kept from compiling what lies around its calls.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

log = logging.getLogger("stepscope")

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


def when_imported(name: str, act: Callable[[ModuleType], object]) -> Callable[[], None]:
    """Call a function with a module: now if it is loaded, otherwise once its code has run.

    The import is otherwise unaffected: if the function fails, a warning goes to the "stepscope"
    logger.

    Returns:
        Gives the waiting up; does nothing once the module is imported.
    """
    module = sys.modules.get(name)
    if module is not None:
        _try(act, module)
        return lambda: None
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)
    return finder.give_up


class _Finder:
    """Finds one module as usual, and calls the function once it has been executed."""

    def __init__(self, name: str, act: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._act = act

    def give_up(self) -> None:
        """Look for the module no longer."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the import system gives it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The spec of the module; None for every other one."""
        if name != self._name:
            return None
        self.give_up()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute, act = spec.loader.exec_module, self._act

        def exec_and_act(module: ModuleType) -> None:
            execute(module)
            _try(act, module)

        spec.loader.exec_module = exec_and_act  # type: ignore[method-assign]
        return spec


def _try(act: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        act(module)
    except Exception as error:  # noqa: BLE001 - nothing of ours may end the script
        log.warning("stepscope: cannot hook into %s: %s", module.__name__, error)


def is_compiling() -> bool:
    """Whether torch.compile or torch.export traces the caller, who must not break the graph."""
    import torch

    return torch.compiler.is_compiling()


class KeptFromDynamo(NamedTuple):
    """How torch.compile is kept from compiling a function that it calls; see `kept_from_dynamo`.

    Attributes:
        installed: What to call in place of the function.
        aside: What the function returns the result of where something is being compiled.
    """

    installed: Callable[..., Any]
    aside: Callable[..., Any]


def compiler_at_work() -> Callable[[], object]:
    """Says whether torch.compile would compile what is called now: something but None if so."""
    return (_disable() and _of_dynamo("get_eval_frame_callback")) or _nothing


def kept_from_dynamo(call: Callable[..., Any]) -> KeptFromDynamo:
    """Keep torch.compile from compiling a function, which would fail, and warn of it.

    Where nothing is being compiled, as in most steps, nothing stands between: the function itself
    asks `compiler_at_work`, and takes the way `aside` if it is. It must be no method: torch keeps
    what it makes of it there.
    """
    disable = _disable()
    if disable is None:
        return KeptFromDynamo(call, call)
    installed, aside = call, disable(call)
    if compiler_at_work() is _nothing:

        @functools.wraps(call)
        def installed(*given: Any, **named: Any) -> Any:
            return (aside if "torch._dynamo" in sys.modules else call)(*given, **named)

    if (skip := _of_dynamo("skip_code")) is not None:
        skip(installed.__code__)
    vars(installed)["_torchdynamo_disable"] = True  # for what is compiled with the caller
    return KeptFromDynamo(installed, aside)


def _disable() -> Any:
    """As torch.compiler.disable, which loads the compiler at once; None in versions without it."""
    import torch

    return getattr(torch, "_disable_dynamo", None)


def _of_dynamo(name: str) -> Any:
    """A function of the compiler's part in C, which is there before the compiler is loaded."""
    import torch

    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    return getattr(frames, name, None)


def _nothing() -> None:
    """Older versions do not say whether something is being compiled."""
