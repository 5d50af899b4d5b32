"""Runs a function on a module once it is imported, and never imports it itself."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

log = logging.getLogger("stepscope")


def when_imported(name: str, act: Callable[[ModuleType], object]) -> Callable[[], None]:
    """Call a function with a module: now if it is loaded, otherwise once its code has run.

    The import is otherwise unaffected: if the function fails, a warning goes to the "stepscope"
    logger.

    Args:
        name: The module's full name.
        act: The function.

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
