"""Input waits and phases of a training that does not name them, by what it does with torch.

DataLoaders, `torch.autograd.backward` and optimizers are wrapped while a `PhaseWatch` is installed.
What is wrapped calls the original with the same arguments and hands on what it returns or raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from stepscope.capture.profiler import Profiler


class Listener(Protocol):
    """Who wants to know, and decides what is timed: None as an answer means that nothing is."""

    def listens(self) -> bool:
        """Whether this process and thread is the one whose steps are recorded."""
        ...

    def before_fetch(self, iterator: Any) -> Profiler | None:
        """An iterator over a DataLoader is asked for a batch."""
        ...

    def after_fetch(self, profiler: Profiler) -> None:
        """It has given one."""
        ...

    def before_backward(self) -> Profiler | None:
        """A backward pass begins."""
        ...

    def before_optimizer(self) -> Profiler | None:
        """An optimizer's step begins."""
        ...

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer's step has ended, and none is going on around it."""
        ...


class PhaseWatch:
    """Times waits, "backward" and "optimizer", and whatever phases its owner enters.

    At most one of the phases is going on at a time: the next one ends it.

    Args:
        listener: Who is asked and told.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._phase: AbstractContextManager[None] | None = None
        self._fetch_depth = 0
        self._backward_depth = 0
        self._optimizer_depth = 0
        self._is_in_closure = False
        self._undo: list[Callable[[], None]] = []

    # -- into torch and out of it ---------------------------------------------------------------

    def install(self, *, fetches: bool = True) -> None:
        """Wrap what the training will use.

        Args:
            fetches: Whether waits for DataLoaders are wanted: not where the owner times them.
        """
        import torch.utils.data.dataloader as loaders
        from torch import autograd
        from torch.optim import optimizer as optimizers

        if fetches:
            self._replace(loaders._BaseDataLoaderIter, "__next__", self.around_fetch)
        self._replace(autograd, "backward", self.around_backward)
        before = optimizers.register_optimizer_step_pre_hook(self.before_optimizer)
        after = optimizers.register_optimizer_step_post_hook(self.after_optimizer)
        self._undo += [before.remove, after.remove]

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        wrapped = wrap(original)
        setattr(owner, name, wrapped)

        def put_back() -> None:
            # Somebody else may have wrapped it again: then ours stays inside, and does nothing.
            if getattr(owner, name) is wrapped:
                setattr(owner, name, original)

        self._undo.append(put_back)

    def remove(self) -> None:
        """Leave torch as it was."""
        self.leave()
        while self._undo:
            self._undo.pop()()

    # -- phases ---------------------------------------------------------------------------------

    def enter(self, profiler: Profiler, name: str) -> None:
        """Begin a phase; one that is going on ends."""
        self.leave()
        self._phase = profiler.phase(name)
        self._phase.__enter__()

    def leave(self) -> None:
        """End the phase that is going on, if any."""
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__(None, None, None)

    def forget(self) -> None:
        """This is another process now: the phase that is going on is its parent's."""
        self._phase = None

    # -- what is wrapped ------------------------------------------------------------------------

    def around_fetch(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`__next__` of a DataLoader's iterator, with its wait timed."""

        @functools.wraps(fetch)
        def next_batch(iterator: Any) -> Any:
            if self._fetch_depth or not self._listener.listens():
                return fetch(iterator)
            self._fetch_depth += 1
            try:
                profiler = self._listener.before_fetch(iterator)
                if profiler is None:
                    return fetch(iterator)
                self._optimizer_depth = 0  # an optimizer's step that raised has left it behind
                self.leave()
                with profiler.waiting():
                    batch = fetch(iterator)
            finally:
                self._fetch_depth -= 1
            self._listener.after_fetch(profiler)
            return batch

        return next_batch

    def around_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.autograd.backward`, timed as a phase."""

        @functools.wraps(backward)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if self._backward_depth or not self._listener.listens():
                return backward(*arguments, **keywords)
            profiler = self._listener.before_backward()
            if profiler is None:
                return backward(*arguments, **keywords)
            if not self._optimizer_depth or self._is_in_closure:
                self.leave()
            self._backward_depth += 1
            try:
                with profiler.phase("backward"):
                    return backward(*arguments, **keywords)
            finally:
                self._backward_depth -= 1

        return timed

    def before_optimizer(
        self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Called by torch before any optimizer's step; a closure is timed as what it is."""
        if not self._listener.listens():
            return None
        profiler = self._listener.before_optimizer()
        if profiler is None:
            return None
        self._optimizer_depth += 1
        if self._optimizer_depth > 1:
            return None  # one inside another, as wrappers have them
        self.enter(profiler, "optimizer")
        if callable(keywords.get("closure")):
            closure = self._around_closure(profiler, keywords["closure"])
            return arguments, {**keywords, "closure": closure}
        if len(arguments) > 1 and callable(arguments[1]):  # the first is the optimizer itself
            closure = self._around_closure(profiler, arguments[1])
            return (arguments[0], closure, *arguments[2:]), keywords
        return None

    def _around_closure(
        self, profiler: Profiler, closure: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The forward and backward that a script gives to the optimizer, as no part of it."""

        @functools.wraps(closure)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            self.enter(profiler, "forward")
            self._is_in_closure = True
            try:
                return closure(*arguments, **keywords)
            finally:
                self._is_in_closure = False
                self.enter(profiler, "optimizer")

        return timed

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Called by torch after any optimizer's step."""
        if not self._optimizer_depth or not self._listener.listens():
            return
        self._optimizer_depth -= 1
        if self._optimizer_depth:
            return
        self.leave()
        self._listener.after_optimizer(optimizer)
