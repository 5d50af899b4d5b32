"""Tells when a model is set to evaluation, and when it is set back to training."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from stepscope.capture.steps.attempt import attempt


class ModeWatch:
    """Wraps `Module.eval`, and after a call of it `Module.train`, until that is called.

    `train` calls itself for every module within, which many loops do in every step: it must cost
    nothing while no model is set to evaluation.

    Args:
        listens: Whether this process and thread is the one whose steps are recorded.
        changed: Called with the module that was set, and with whether it is training.
    """

    def __init__(self, listens: Callable[[], bool], changed: Callable[[Any, bool], None]) -> None:
        self._listens = listens
        self._changed = changed
        self._is_switching = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Wrap them, until `remove`."""
        from torch.nn import Module

        set_to_eval, set_to_train = Module.eval, Module.train

        @functools.wraps(set_to_eval)
        def evaluate(module: Any) -> Any:
            if not self._is_told():
                return set_to_eval(module)
            if Module.train is set_to_train:
                Module.train = train  # type: ignore[method-assign, assignment]
            return self._switch(module, set_to_eval)

        @functools.wraps(set_to_train)
        def train(module: Any, mode: bool = True) -> Any:
            if not self._is_told():
                return set_to_train(module, mode)
            if mode:
                put_train_back()
            return self._switch(module, set_to_train, mode)

        # If other code wrapped one again, ours stays inside and does nothing.
        def put_train_back() -> None:
            if Module.train is train:
                Module.train = set_to_train  # type: ignore[method-assign]

        def put_eval_back() -> None:
            if Module.eval is evaluate:
                Module.eval = set_to_eval  # type: ignore[method-assign]

        Module.eval = evaluate  # type: ignore[method-assign, assignment]
        self._undo = [put_train_back, put_eval_back]

    def remove(self) -> None:
        """Restore torch."""
        while self._undo:
            self._undo.pop()()

    def _is_told(self) -> bool:
        """Whether this call is one to tell of: not that of a module within."""
        from torch.compiler import is_compiling

        # When torch compiles the caller, it must find its own function.
        return not self._is_switching and not is_compiling() and bool(attempt(self._listens))

    def _switch(self, module: Any, switch: Callable[..., Any], *mode: Any) -> Any:
        self._is_switching = True
        try:
            result = switch(module, *mode)
        finally:
            self._is_switching = False
        attempt(self._changed, module, bool(module.training))
        return result
