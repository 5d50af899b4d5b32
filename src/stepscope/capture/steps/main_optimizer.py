"""Which of several optimizers ends the steps."""

from __future__ import annotations

import weakref
from typing import Any

_OTHERS_BEFORE_CHANGE = 50
"""After this many steps of other optimizers, the one that ends steps counts as unused."""


_CONFIRMATIONS = 2
"""How often in a row another optimizer must be the last before a batch to end steps from then on.
Twice as often after each change, so that a training that alternates settles."""


class MainOptimizer:
    """Decides whose steps are counted: those of the optimizer that is used first.

    If another one is always the last before the next batch, as in a training with two networks, it
    ends the steps from then on. If the one that does goes unused or is gone, another one takes its
    place.
    """

    def __init__(self) -> None:
        self._main: weakref.ref[Any] | None = None
        self._last: weakref.ref[Any] | None = None
        self._others = 0
        self._confirmations = 0
        self._needed = _CONFIRMATIONS

    def batch_is_wanted(self) -> bool:
        """Take notice that the loop asks for a batch: what stepped last may end its iterations.

        Returns:
            Whether another optimizer ends the steps from now on. Then what came since the last end
            of a step is the rest of one.
        """
        last = self._last() if self._last is not None else None
        self._last = None
        if last is None or self._main is None:
            return False
        if last is self._main():
            self._confirmations = 0
            return False
        self._confirmations += 1
        if self._confirmations < self._needed:
            return False
        self._main = weakref.ref(last)
        self._others = self._confirmations = 0
        self._needed *= 2
        return True

    def ends_steps(self, optimizer: Any) -> bool:
        """Whether the step that this optimizer has just made ends a step of the training."""
        self._last = weakref.ref(optimizer)
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
