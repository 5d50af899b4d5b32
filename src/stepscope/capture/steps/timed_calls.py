"""Times collectives and the saving of checkpoints, wherever the training thread calls them.

The collectives of torch.distributed, the wait for one that was only begun, and the functions that
save are wrapped while the watch is installed: `torch.save`, and those of `_SAVERS` if their module
is imported, or once it is. Each wrapper calls the original with the same arguments and passes on
what it returns or raises. That a rank sends to single ranks or receives, as the stages of a
pipeline do, is noted: such ranks wait for each other by design.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from stepscope.capture.steps.attempt import attempt
from stepscope.capture.steps.imports import when_imported
from stepscope.capture.steps.phase_timer import Depths, Listener, OpenPhase, PhaseTimer
from stepscope.capture.steps.replacements import Replacements
from stepscope.run.step_record import COMMUNICATION, SAVING

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
        listener: Decides whether this process and thread is recorded.
        running: Returns what times the calls, or None while nothing does.
        phase: The open phase, which saving interrupts.
        depths: How deep the training thread is in what else is watched.
        replacements: Receives what is wrapped.

    Attributes:
        saves: How often the training has saved so far.
    """

    def __init__(
        self,
        listener: Listener,
        running: Callable[[], PhaseTimer | None],
        phase: OpenPhase,
        depths: Depths,
        replacements: Replacements,
    ) -> None:
        self._listener = listener
        self._running = running
        self._phase = phase
        self._depths = depths
        self._replacements = replacements
        self._depth = 0
        self._exchanges = False
        self.saves = 0

    def install(self) -> None:
        """Wrap the functions that the training will use."""
        self._wrap_collectives()
        self._wrap_saving()

    def _wrap_collectives(self) -> None:
        from torch import distributed

        if not distributed.is_available():
            return
        # The compiler looks up its substitutes by function, so it must have been loaded before.
        from torch.distributed import _functional_collectives, distributed_c10d

        del _functional_collectives
        for name in _COLLECTIVES:
            original = getattr(distributed_c10d, name, None)
            if original is None:
                continue
            wrapped = self._around_collective(original)
            for owner in (distributed, distributed_c10d):
                if getattr(owner, name, None) is original:
                    self._replacements.put(owner, name, original, wrapped)
        # Sending and receiving are wrapped inside the functions of torch.distributed: it compares
        # those that it is given with its own, and scripts may have taken theirs before.
        self._replacements.replace(distributed_c10d.Work, "wait", self._around_collective)
        for name in _EXCHANGES:
            if hasattr(distributed_c10d.ProcessGroup, name):
                self._replacements.replace(distributed_c10d.ProcessGroup, name, self._noting)

    def _wrap_saving(self) -> None:
        import torch
        from torch import serialization

        self._wrap_saver("save", (serialization, torch))
        for module, (names, others) in _SAVERS.items():
            wrap = functools.partial(self._wrap_savers, names, others)
            self._replacements.undo_by(when_imported(module, wrap))

    def _wrap_savers(
        self,
        names: tuple[str, ...],
        others: tuple[str, ...],
        module: ModuleType,
    ) -> None:
        owners = (module, *(sys.modules[name] for name in others if name in sys.modules))
        for name in names:
            if hasattr(module, name):
                self._wrap_saver(name, owners)

    def _wrap_saver(self, name: str, owners: tuple[Any, ...]) -> None:
        """Wrap a function of the first owner, which others may have, too."""
        original = getattr(owners[0], name)
        wrapped = self._around_saving(original)
        for owner in owners:
            if getattr(owner, name, None) is original:
                self._replacements.put(owner, name, original, wrapped)

    def _around_collective(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function of torch.distributed to time it, unless it returns before it is done."""
        from torch.compiler import is_compiling

        @functools.wraps(collective)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            # When torch compiles the caller, it must find its own function.
            if is_compiling():
                return collective(*arguments, **keywords)
            is_inside = self._depth or self._depths.own
            if is_inside or keywords.get("async_op") or not attempt(self._listener.listens):
                return collective(*arguments, **keywords)
            timer = attempt(self._running)
            if timer is None:
                return collective(*arguments, **keywords)
            self._depth += 1
            attempt(self._phase.end_after_calls)
            try:
                with timer.phase(COMMUNICATION):
                    return collective(*arguments, **keywords)
            finally:
                self._depth -= 1

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
        if self._listener.listens() and (timer := self._running()) is not None:
            timer.note_exchanges()
            self._exchanges = True

    def _around_saving(self, save: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that saves: its time is no part of the phase in which it is called."""

        @functools.wraps(save)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if self._depths.own or self._depths.backward or not attempt(self._listener.listens):
                return save(*arguments, **keywords)
            timer = attempt(self._running)
            if timer is None:
                return save(*arguments, **keywords)
            self.saves += 1
            attempt(self._phase.stand_back)
            try:
                with timer.phase(SAVING):
                    return save(*arguments, **keywords)
            finally:
                attempt(self._phase.come_back)

        return timed
