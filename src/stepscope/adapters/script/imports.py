"""Doing something to a module as soon as somebody imports it, and nothing where nobody does."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

log = logging.getLogger("stepscope")


def when_imported(name: str, act: Callable[[ModuleType], object]) -> None:
    """Call a function with a module: now if it is loaded, otherwise once its code has run.

    Whoever imports the module gets it as without us, whatever the function does: an error of its
    own is told in the log named "stepscope".

    Args:
        name: The module's full name.
        act: What to do with it.
    """
    module = sys.modules.get(name)
    if module is not None:
        _try(act, module)
        return
    sys.meta_path.insert(0, _Finder(name, act))


class _Finder:
    """Finds one module as everybody else does, and acts once it has been executed."""

    def __init__(self, name: str, act: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._act = act

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the import system gives it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Where the module is; None for every other one."""
        if name != self._name:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
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
        log.warning("stepscope: %s is not followed: %s", module.__name__, error)
