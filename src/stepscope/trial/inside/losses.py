"""Reads the losses of a script without a word in it: what `backward` is called on.

A loss is the only element of the first tensor given to the outermost `torch.autograd.backward` on
the main thread. A copy of it stays on its device until the end, so that nothing waits for a GPU.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from stepscope.trial.inside.patches import Patches

_MOST = 20_000


class LossWatch:
    """Keeps the losses of the main thread, in order."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._depth = 0

    def install(self, patches: Patches) -> None:
        """Wrap `torch.autograd.backward`."""
        from torch import autograd

        patches.replace(autograd, "backward", self._around)

    def values(self) -> list[float]:
        """The losses as numbers; waits for their device."""
        return [float(loss) for loss in self._kept]

    def _around(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(backward)
        def watched(*arguments: Any, **keywords: Any) -> Any:
            if self._depth or threading.current_thread() is not threading.main_thread():
                return backward(*arguments, **keywords)
            self._keep(arguments[0] if arguments else keywords.get("tensors"))
            self._depth += 1
            try:
                return backward(*arguments, **keywords)
            finally:
                self._depth -= 1

        return watched

    def _keep(self, tensors: Any) -> None:
        import torch

        try:
            first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors or ()))
            if len(self._kept) < _MOST and first.numel() == 1 and first.is_floating_point():
                self._kept.append(first.detach().clone())
        except Exception:  # noqa: BLE001 - a loss that cannot be kept is not compared
            return
