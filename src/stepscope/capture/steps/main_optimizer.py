"""Which of several optimizers ends the steps."""

from __future__ import annotations

import weakref
from typing import Any

_OTHERS_BEFORE_CHANGE = 50
"""After this many steps of other optimizers, the one that ends steps counts as unused."""


class MainOptimizer:
    """Decides whose steps are counted: those of the optimizer that is used first.

    If it goes unused or is gone, another one takes its place.
    """

    def __init__(self) -> None:
        self._main: weakref.ref[Any] | None = None
        self._others = 0

    def ends_steps(self, optimizer: Any) -> bool:
        """Whether the step that this optimizer has just made ends a step of the training."""
        main = self._main() if self._main is not None else None
        if main is optimizer:
            self._others = 0
            return True
        self._others += 1
        if main is None or self._others > _OTHERS_BEFORE_CHANGE:
            self._main = weakref.ref(optimizer)
            self._others = 0
            return True
        return False
