"""Times what the training thread calls: collectives, saving, and the outermost calls of modules.

The collectives of torch.distributed, the wait for one that was only begun, and the functions that
save are wrapped while a detector is installed: `torch.save`, and those of `_SAVERS` if their module
is imported, or once it is. That a rank sends to single ranks or receives, as the stages of a
pipeline do, is noted: such ranks wait for each other by design.

Forward passes are the outermost calls of modules. Hooks for all modules would slow down every call
of every module within, and torch.compile would have to compile them. So the classes of those
modules are wrapped that the loop itself calls. They are looked for where a backward pass begins, or
a step of an inference ends, and no call was seen before it: first the modules that no other module
contains, such as a model in its wrapper, then the modules in those, and so on. The first backward
pass is always such a one, so a training's first forward pass is not seen.
"""

from __future__ import annotations

import functools
import gc
import sys
import time
from collections.abc import Callable
from threading import get_ident
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepscope.capture.containment import attempt, missed
from stepscope.capture.steps.phase_times import (
    COLLECTIVE_BEGINS,
    COLLECTIVE_ENDS,
    SAVE_BEGINS,
    SAVE_ENDS,
)
from stepscope.capture.steps.replacements import Replacements, when_imported

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

_COLLECTIVE = (COLLECTIVE_BEGINS, COLLECTIVE_ENDS)
_SAVE = (SAVE_BEGINS, SAVE_ENDS)
"""The events around calls of either kind."""
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
    """Times collectives and saving."""

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

        self._wrap("save", (serialization, torch), *_SAVE)
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
                self._wrap(name, (distributed_c10d, distributed), *_COLLECTIVE)
        # Sending and receiving are wrapped inside the functions of torch.distributed: it compares
        # those that it is given with its own, and scripts may have taken theirs before.
        self._wrap("wait", (distributed_c10d.Work,), *_COLLECTIVE)
        for name in _EXCHANGES:
            if hasattr(distributed_c10d.ProcessGroup, name):
                self._replacements.replace(distributed_c10d.ProcessGroup, name, self._noting)

    def _wrap_savers(
        self, names: tuple[str, ...], others: tuple[str, ...], module: ModuleType
    ) -> None:
        owners = (module, *(sys.modules[name] for name in others if name in sys.modules))
        for name in names:
            if hasattr(module, name):
                self._wrap(name, owners, *_SAVE)

    def _wrap(self, name: str, owners: tuple[Any, ...], begins: str, ends: str) -> None:
        """Wrap a function of the first owner, which others may have, too."""
        original = getattr(owners[0], name)
        wrapped = self._timed(original, begins, ends)
        for owner in owners:
            if getattr(owner, name, None) is original:
                self._replacements.put(owner, name, original, wrapped)

    def _timed(self, call: Callable[..., Any], begins: str, ends: str) -> Callable[..., Any]:
        """Wrap a function to time it, unless it returns before it is done.

        What is timed may call more of the like: one function that saves calls another, and
        collectives.
        """
        from torch.compiler import is_compiling

        @functools.wraps(call)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            # When torch compiles the caller, it must find its own function.
            if is_compiling() or self._is_inside or keywords.get("async_op"):
                return call(*arguments, **keywords)
            core = attempt(self._core)
            if core is None:
                return call(*arguments, **keywords)
            self._is_inside = True
            self._detector.saves += begins == SAVE_BEGINS
            core.note(begins)
            try:
                return call(*arguments, **keywords)
            finally:
                self._is_inside = False
                core.note(ends)

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

    def _core(self) -> StepCore | None:
        """Where to note what the training thread calls; None for another one."""
        return self._detector.core if self._detector.listens() else None


_LOOKS_AT = (1, 2, 4)
"""Modules are looked for at these numbers of backward passes in a row without a call before."""
_GIVES_UP_AT = 8
"""After as many, the loop's forward passes are no calls of modules."""
_MOST_LOOKS = 6
_SLOW_LOOK_NS = 500_000_000
"""A look that takes longer, because the process has many millions of objects, is the last one."""


class ForwardCalls:
    """Reports the outermost calls of the training's modules.

    Args:
        detector: Where they are noted; None to note nothing.

    Attributes:
        is_found: Whether the loop's forward passes are known to be calls of modules.
        calls: Number of outermost calls since the last backward pass, or step of an inference.
    """

    def __init__(self, detector: Detector | None) -> None:
        self.is_found = False
        self.calls = 0
        self._detector = detector
        self._is_inside = False
        self._classes: set[type] = set()
        self._missed = 0
        self._looks = 0
        self._replacements = Replacements()

    def __reduce__(self) -> tuple[Any, ...]:
        # A class may be pickled with what wraps it: by cloudpickle, if it belongs to the script.
        return ForwardCalls, (None,)

    def end_pass(self) -> None:
        """End a step of an inference: look for the modules that it calls if none was seen."""
        if self.calls:
            self.calls = 0
        else:
            self.look()

    def look(self) -> None:
        """Look for the modules that the loop calls: a pass ends, and none was called in it."""
        self._missed += 1
        if self._missed == _GIVES_UP_AT:
            if not self.is_found:
                self.remove()  # none of these classes is called
            self.is_found = False
        # Several losses may share one call: where calls are found, one miss says nothing.
        looks_at = _LOOKS_AT[-1:] if self.is_found else _LOOKS_AT
        if self._missed in looks_at and self._looks < _MOST_LOOKS:
            began_ns, started_ns = time.perf_counter_ns(), time.thread_time_ns()
            for kind in _classes_of_modules(self._looks):
                self._wrap(kind)
            took_ns = time.thread_time_ns() - started_ns
            if self._detector is not None and self._detector.core is not None:
                self._detector.core.leave_out_own(time.perf_counter_ns() - began_ns)
            self._looks = self._looks + 1 if took_ns < _SLOW_LOOK_NS else _MOST_LOOKS

    def remove(self) -> None:
        """Restore the classes."""
        self._replacements.restore()
        self._classes.clear()

    def forget(self) -> None:
        """Reset the state after a fork."""
        self._is_inside = False
        self.calls = 0

    def _wrap(self, kind: type) -> None:
        if kind not in self._classes:
            self._classes.add(kind)
            self._replacements.put(kind, "__call__", kind.__call__, self._around_call(kind))

    def _around_call(self, kind: Any) -> Callable[..., Any]:
        import torch

        is_compiling = torch.compiler.is_dynamo_compiling
        records_gradients = torch.is_grad_enabled
        own = kind.__dict__.get("__call__")

        @functools.wraps(kind.__call__)
        def called(module: Any, *arguments: Any, **keywords: Any) -> Any:
            # What the class inherits is looked up at each call: others replace it for a while.
            inherited: Any = super(kind, module)
            call = own.__get__(module) if own is not None else inherited.__call__
            if is_compiling() or self._is_inside:
                return call(*arguments, **keywords)
            is_outermost, noted = False, None
            try:
                detector, thread = self._detector, get_ident()
                if detector is not None and thread == detector.thread and not detector.is_off:
                    core = detector.core
                    if core is None or core.thread == thread:
                        is_outermost = self._is_inside = self.is_found = True
                        self.calls += 1
                        self._missed = 0
                        if core is not None and (
                            records_gradients() or detector.policy.is_forward_without_gradients()
                        ):
                            depends = False
                            if self.calls > 1:  # it may go on with the one before
                                given = (*arguments, *keywords.values()) if keywords else arguments
                                for one in given:
                                    is_asked = getattr(one, "requires_grad", False) is True
                                    depends = depends or is_asked
                            core.begin_call(depends)
                            noted = core
            except Exception as error:  # noqa: BLE001 - the training must go on
                missed(error)
            try:
                return call(*arguments, **keywords)
            finally:
                if is_outermost:
                    self._is_inside = False
                if noted is not None:
                    noted.end_call(records_gradients())

        return called


def _classes_of_modules(depth: int) -> set[type]:
    """Classes of the modules with parameters that no other module contains.

    Args:
        depth: How many levels of the modules inside these to add.
    """
    import torch

    kinds = _subclasses(torch.nn.Module) - _subclasses(torch.jit.ScriptModule)
    # By type alone: an object's own idea of its class may run code.
    modules = [one for one in gc.get_objects() if type(one) in kinds]
    inner = {id(child) for module in modules for child in _children(module)}
    level = [one for one in modules if id(one) not in inner and attempt(_has_parameters, one)]
    found = {type(module) for module in level}
    for _ in range(depth):
        level = [
            child
            for module in level
            for child in _children(module)
            if type(child) in kinds and attempt(_has_parameters, child)
        ]
        found |= {type(child) for child in level}
    return found


def _subclasses(kind: type) -> set[type]:
    found, waiting = {kind}, [kind]
    while waiting:
        subclasses: list[type] = type.__subclasses__(waiting.pop())
        for subclass in subclasses:
            if subclass not in found:
                found.add(subclass)
                waiting.append(subclass)
    return found


def _children(module: Any) -> list[Any]:
    inner = module.__dict__.get("_modules")
    return [child for child in inner.values() if child is not None] if inner else []


def _has_parameters(module: Any) -> bool:
    return next(module.parameters(), None) is not None
