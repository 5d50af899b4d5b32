"""Finds forward passes: the outermost calls of modules.

Hooks for all modules would slow down every call of every module within, and torch.compile would
have to compile them. So the classes of those modules are wrapped that the loop itself calls. They
are looked for where a backward pass begins and no call was seen before it: first the modules that
no other module contains, such as a model in its wrapper, then the modules in those, and so on. The
first backward pass is always such a one, so a training's first forward pass is not seen.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stepscope.capture.containment import attempt, missed
from stepscope.capture.steps.phase_times import CALL, RETURN
from stepscope.capture.steps.replacements import Replacements

if TYPE_CHECKING:
    from stepscope.capture.steps.detector import Detector

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
        calls: Number of outermost calls since the last backward pass.
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

    def look(self) -> None:
        """Look for the modules that the loop calls: a backward pass begins, without any before."""
        self._missed += 1
        if self._missed == _GIVES_UP_AT:
            if not self.is_found:
                self.remove()  # none of these classes is called
            self.is_found = False
        # Several losses may share one call: where calls are found, one miss says nothing.
        looks_at = _LOOKS_AT[-1:] if self.is_found else _LOOKS_AT
        if self._missed in looks_at and self._looks < _MOST_LOOKS:
            started_ns = time.perf_counter_ns()
            for kind in _classes_of_modules(self._looks):
                self._wrap(kind)
            took_ns = time.perf_counter_ns() - started_ns
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

        is_compiling, records_gradients = torch.compiler.is_compiling, torch.is_grad_enabled
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
                            for one in (*arguments, *keywords.values()):
                                depends = depends or getattr(one, "requires_grad", False) is True
                            core.note(CALL, depends)
                            noted = core
            except Exception as error:  # noqa: BLE001 - the training must go on
                missed(error)
            try:
                return call(*arguments, **keywords)
            finally:
                if is_outermost:
                    self._is_inside = False
                if noted is not None:
                    has_loss = records_gradients()
                    noted.note(RETURN, has_loss, ends_phase=not has_loss)

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
