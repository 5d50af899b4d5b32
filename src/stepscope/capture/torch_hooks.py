"""Putting a `TrainingWatch` into torch, and taking it out again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.capture.training_watch import TrainingWatch

_COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
)


class TorchHooks:
    """The functions of torch that a watch listens to, wrapped.

    Args:
        watch: What listens.
    """

    def __init__(self, watch: TrainingWatch) -> None:
        self._watch = watch
        self._handles: list[Any] = []
        self._wrapped: list[tuple[Any, str, Any, Any]] = []

    def install(self) -> None:
        """Begin to listen."""
        import torch.utils.data.dataloader as loaders
        from torch import autograd
        from torch.optim import optimizer as optimizers

        watch = self._watch
        self._wrap(loaders._BaseDataLoaderIter, "__next__", watch.around_fetch)
        self._wrap(autograd, "backward", watch.around_backward)
        self._handles = [
            optimizers.register_optimizer_step_pre_hook(watch.before_optimizer),
            optimizers.register_optimizer_step_post_hook(watch.after_optimizer),
        ]
        self._wrap_collectives()

    def remove(self) -> None:
        """Leave torch as it was; whoever wrapped a function after us keeps his wrapper."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for owner, name, original, wrapper in self._wrapped:
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)
        self._wrapped = []

    def _wrap_collectives(self) -> None:
        from torch import distributed

        if not distributed.is_available():
            return
        # The compiler looks its own substitutes up by function, and must have read them before.
        from torch.distributed import _functional_collectives, distributed_c10d

        del _functional_collectives
        for name in _COLLECTIVES:
            original = getattr(distributed_c10d, name, None)
            if original is None:
                continue
            wrapper = self._watch.around_collective(original)
            for owner in (distributed, distributed_c10d):
                if getattr(owner, name, None) is original:
                    self._replace(owner, name, original, wrapper)

    def _wrap(self, owner: Any, name: str, around: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._replace(owner, name, original, around(original))

    def _replace(self, owner: Any, name: str, original: Any, wrapper: Any) -> None:
        setattr(owner, name, wrapper)
        self._wrapped.append((owner, name, original, wrapper))
