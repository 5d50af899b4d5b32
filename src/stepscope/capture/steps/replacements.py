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
from types import FunctionType, ModuleType
from typing import Any, TypeVar, cast

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


_Result = TypeVar("_Result")


def is_compiling() -> bool:
    """Whether torch.compile or torch.export traces the caller, who must not break the graph."""
    import torch

    return torch.compiler.is_compiling()


def skipped_by_dynamo(call: Callable[..., _Result]) -> Callable[..., _Result]:
    """A function that torch.compile calls and does not try to compile.

    It would fail at the first call into the operating system, and warn of it. Where nothing is
    being compiled, as in most steps, nothing of torch stands between. The function must be no
    method: torch keeps what it makes of it there.
    """
    import torch

    # As torch.compiler.disable, which loads the compiler at once.
    disable = getattr(torch, "_disable_dynamo", None)
    if disable is None:
        return call
    disabled: Callable[..., _Result] = disable(call)
    frames = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    compiles = getattr(frames, "get_eval_frame_callback", _compiler_module)
    is_traced = torch.compiler.is_dynamo_compiling

    @functools.wraps(call)
    def called(*given: Any, **named: Any) -> _Result:
        if is_traced() or compiles() is not None:
            return disabled(*given, **named)
        return call(*given, **named)

    skip = getattr(frames, "skip_code", None)
    if skip is not None:
        skip(cast("FunctionType", called).__code__)
    return called


def _compiler_module() -> ModuleType | None:
    """Torch's compiler, if it is loaded: older versions do not say whether it compiles here."""
    return sys.modules.get("torch._dynamo")
