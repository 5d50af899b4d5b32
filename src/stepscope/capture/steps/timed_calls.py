"""Times collectives and the saving of checkpoints, wherever the training thread calls them.

The collectives of torch.distributed, the wait for one that was only begun, and the functions that
save are wrapped while a detector is installed: `torch.save`, and those of `_SAVERS` if their module
is imported, or once it is. That a rank sends to single ranks or receives, as the stages of a
pipeline do, is noted: such ranks wait for each other by design.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepscope.capture.containment import attempt
from stepscope.capture.steps.imports import when_imported
from stepscope.capture.steps.phase_times import (
    COLLECTIVE_BEGINS,
    COLLECTIVE_ENDS,
    SAVE_BEGINS,
    SAVE_ENDS,
)
from stepscope.capture.steps.replacements import Replacements

if TYPE_CHECKING:
    from stepscope.capture.steps.core import StepCore
    from stepscope.capture.steps.detector import Detector

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

_EXCHANGES = ("send", "recv", "recv_anysource")
"""Methods of a process group."""

_SAVERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "torch.distributed.checkpoint": (
        ("save", "async_save"),  # of the second, what it does before it returns
        ("torch.distributed.checkpoint.state_dict_saver",),
    ),
    "safetensors.torch": (("save_file",), ()),
}
"""Module to its functions that save, and to the other modules that have them under these names."""


class TimedCalls:
    """Times collectives and saving.

    Args:
        detector: Where they are noted.
        replacements: Receives what is wrapped.
    """

    def __init__(self, detector: Detector, replacements: Replacements) -> None:
        self._detector = detector
        self._replacements = replacements
        self._is_inside = False
        self._exchanges = False

    def install(self) -> None:
        """Wrap the functions that the training will use."""
        self._wrap_collectives()
        import torch
        from torch import serialization

        self._wrap("save", (serialization, torch), self._around_saving)
        for module, (names, others) in _SAVERS.items():
            wrap = functools.partial(self._wrap_savers, names, others)
            self._replacements.undo_by(when_imported(module, wrap))

    def _wrap_collectives(self) -> None:
        from torch import distributed

        if not distributed.is_available():
            return
        # The compiler looks up its substitutes by function, so it must have been loaded before.
        from torch.distributed import _functional_collectives, distributed_c10d

        del _functional_collectives
        for name in _COLLECTIVES:
            if hasattr(distributed_c10d, name):
                self._wrap(name, (distributed_c10d, distributed), self._around_collective)
        # Sending and receiving are wrapped inside the functions of torch.distributed: it compares
        # those that it is given with its own, and scripts may have taken theirs before.
        self._replacements.replace(distributed_c10d.Work, "wait", self._around_collective)
        for name in _EXCHANGES:
            if hasattr(distributed_c10d.ProcessGroup, name):
                self._replacements.replace(distributed_c10d.ProcessGroup, name, self._noting)

    def _wrap_savers(
        self, names: tuple[str, ...], others: tuple[str, ...], module: ModuleType
    ) -> None:
        owners = (module, *(sys.modules[name] for name in others if name in sys.modules))
        for name in names:
            if hasattr(module, name):
                self._wrap(name, owners, self._around_saving)

    def _wrap(self, name: str, owners: tuple[Any, ...], around: Callable[[Any], Any]) -> None:
        """Wrap a function of the first owner, which others may have, too."""
        original = getattr(owners[0], name)
        wrapped = around(original)
        for owner in owners:
            if getattr(owner, name, None) is original:
                self._replacements.put(owner, name, original, wrapped)

    def _around_collective(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of torch.distributed to time it, unless it returns before it is done."""
        from torch.compiler import is_compiling

        @functools.wraps(collective)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            # When torch compiles the caller, it must find its own function.
            if is_compiling() or self._is_inside or keywords.get("async_op"):
                return collective(*arguments, **keywords)
            core = attempt(self._core)
            if core is None:
                return collective(*arguments, **keywords)
            self._is_inside = True
            core.note(COLLECTIVE_BEGINS)
            try:
                return collective(*arguments, **keywords)
            finally:
                self._is_inside = False
                core.note(COLLECTIVE_ENDS)

        return timed

    def _noting(self, exchange: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method that sends to one rank or receives, to note that there is such a thing."""

        @functools.wraps(exchange)
        def noted(*arguments: Any, **keywords: Any) -> Any:
            if not self._exchanges:
                attempt(self._note_exchange)
            return exchange(*arguments, **keywords)

        return noted

    def _note_exchange(self) -> None:
        core = self._core()
        if core is not None:
            core.note_exchanges()
            self._exchanges = True

    def _around_saving(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that saves: its time is no part of the phase in which it is called."""

        @functools.wraps(save)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            core = None if self._is_inside else attempt(self._core)
            if core is None:
                return save(*arguments, **keywords)
            self._is_inside = True  # one function that saves calls another, and collectives
            self._detector.saves += 1
            core.note(SAVE_BEGINS)
            try:
                return save(*arguments, **keywords)
            finally:
                self._is_inside = False
                core.note(SAVE_ENDS)

        return timed

    def _core(self) -> StepCore | None:
        """Where to note what the training thread calls; None for another one."""
        return self._detector.core if self._detector.listens() else None
