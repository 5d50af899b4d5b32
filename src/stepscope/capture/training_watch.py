"""Telling a step's phases from what the training does with torch, without a word from its code.

*input* is the wait for a DataLoader's batch. *forward* lasts from the batch's arrival to the
beginning of backward, *backward* and *optimizer* as long as torch works on them, *communication* as
long as a collective holds the training thread, wherever it is called. What lies between them is no
phase. Where batches come neither from a DataLoader nor through `watch` nothing tells when forward
begins, and it is left out.

What is wrapped calls the original with the same arguments and hands on what it returns or raises.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

FORWARD = "forward"
BACKWARD = "backward"
OPTIMIZER = "optimizer"
COMMUNICATION = "communication"


class PhaseTimer(Protocol):
    """What times phases and waits: a profiler."""

    def phase(self, name: str, /) -> AbstractContextManager[None]:
        """Time what lies inside as a phase."""

    def waiting(self) -> AbstractContextManager[None]:
        """Time what lies inside as the wait for a batch."""


class TrainingEvents(Protocol):
    """What wants to know more than phases."""

    def begin(self, *, is_from_start: bool) -> PhaseTimer | None:
        """A training shows itself: begin to time it. The sign may be the first in a step."""

    def batch_wanted(self, data: int) -> None:
        """The next batch is asked for; `data` stands for the data set that it comes from."""

    def backward_begins(self) -> None:
        """Gradients are computed."""

    def optimizer_ended(self, optimizer: Any) -> None:
        """An optimizer has made its step."""


class TrainingWatch:
    """Turns calls of torch into waits and phases. Only one thread counts.

    A phase that the loop names itself comes first: while one is open, none of these is.

    Args:
        timer: Gives what times them, or None while nothing does.
        events: What else wants to know.
        thread: The training's thread.
    """

    def __init__(
        self,
        timer: Callable[[], PhaseTimer | None],
        events: TrainingEvents | None = None,
        thread: threading.Thread | None = None,
    ) -> None:
        self._timer = timer
        self._events = events
        self._thread = thread or threading.current_thread()
        self._is_off = False
        self._fetch_depth = 0
        self._backward_depth = 0
        self._optimizer_depth = 0
        self._communication_depth = 0
        self._is_in_closure = False
        self._own_depth = 0
        self._wanted = ""
        self._phase: AbstractContextManager[None] | None = None

    @property
    def listens(self) -> bool:
        """Whether what this thread does counts."""
        return not self._is_off and threading.current_thread() is self._thread

    def close(self) -> None:
        """Leave the open phase and listen no more: what is wrapped still works."""
        self.leave()
        self._is_off = True

    def forget(self) -> None:
        """This is a forked child: what was open is the parent's."""
        self._phase, self._wanted = None, ""

    # -- what is wrapped ------------------------------------------------------------------------

    def around_fetch(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """`__next__` of a DataLoader's iterator, with its wait timed."""

        @functools.wraps(fetch)
        def next_batch(iterator: Any) -> Any:
            if self._fetch_depth or not self.listens:
                return fetch(iterator)
            timer = self._begun(is_from_start=True)
            if timer is None:
                return fetch(iterator)
            with self.fetching(id(getattr(iterator, "_dataset", iterator))), timer.waiting():
                batch = fetch(iterator)
            self._enter(timer, FORWARD)
            return batch

        return next_batch

    @contextlib.contextmanager
    def fetching(self, data: int = 0) -> Iterator[None]:
        """A batch is asked for inside. Whoever uses it calls `batch_came` if it came."""
        if self._fetch_depth or not self.listens:
            yield
            return
        self._fetch_depth += 1
        try:
            self._optimizer_depth = 0  # an optimizer's step that raised has left it behind
            self.leave()
            if self._events is not None:
                self._events.batch_wanted(data)
            yield
        finally:
            self._fetch_depth -= 1

    def batch_came(self) -> None:
        """The batch that was asked for is there."""
        timer = self._timer() if self.listens else None
        if timer is not None:
            self._enter(timer, FORWARD)

    def around_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.autograd.backward`, timed as a phase."""

        @functools.wraps(backward)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if self._backward_depth or not self.listens:
                return backward(*arguments, **keywords)
            timer = self._begun(is_from_start=False)
            if timer is None:
                return backward(*arguments, **keywords)
            if not self._optimizer_depth or self._is_in_closure:
                self.leave()
            if self._events is not None:
                self._events.backward_begins()
            self._backward_depth += 1
            try:
                if self._own_depth:
                    return backward(*arguments, **keywords)
                with timer.phase(BACKWARD):
                    return backward(*arguments, **keywords)
            finally:
                self._backward_depth -= 1

        return timed

    def around_collective(self, collective: Callable[..., Any]) -> Callable[..., Any]:
        """A function of torch.distributed, timed as a phase unless it returns before it is done."""
        from torch.compiler import is_compiling

        @functools.wraps(collective)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            # Where torch compiles the caller, it must find its own function and nothing else.
            if is_compiling():
                return collective(*arguments, **keywords)
            if self._communication_depth or self._own_depth or not self.listens:
                return collective(*arguments, **keywords)
            timer = None if keywords.get("async_op") else self._timer()
            if timer is None:
                return collective(*arguments, **keywords)
            self._communication_depth += 1
            try:
                with timer.phase(COMMUNICATION):
                    return collective(*arguments, **keywords)
            finally:
                self._communication_depth -= 1

        return timed

    def before_optimizer(
        self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Called by torch before any optimizer's step; a closure is timed as what it is."""
        timer = self._begun(is_from_start=False) if self.listens else None
        if timer is None:
            return None
        self._optimizer_depth += 1
        if self._optimizer_depth > 1:
            return None
        self._enter(timer, OPTIMIZER)
        if callable(keywords.get("closure")):
            closure = self._around_closure(timer, keywords["closure"])
            return arguments, {**keywords, "closure": closure}
        if len(arguments) > 1 and callable(arguments[1]):  # the first is the optimizer itself
            closure = self._around_closure(timer, arguments[1])
            return (arguments[0], closure, *arguments[2:]), keywords
        return None

    def _around_closure(self, timer: PhaseTimer, closure: Callable[..., Any]) -> Callable[..., Any]:
        """The forward and backward that a script gives to the optimizer, as no part of it."""

        @functools.wraps(closure)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            self._enter(timer, FORWARD)
            self._is_in_closure = True
            try:
                return closure(*arguments, **keywords)
            finally:
                self._is_in_closure = False
                self._enter(timer, OPTIMIZER)

        return timed

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Called by torch after any optimizer's step."""
        if not self._optimizer_depth or not self.listens:
            return
        self._optimizer_depth -= 1
        if self._optimizer_depth:
            return  # one inside another, as wrappers have them
        self.leave()
        if self._events is not None:
            self._events.optimizer_ended(optimizer)

    # -- phases ---------------------------------------------------------------------------------

    def stand_back(self) -> None:
        """The loop begins a phase of its own."""
        if self.listens:
            self._own_depth += 1
            self._close()

    def come_back(self) -> None:
        """A phase of the loop's own has ended: what went on before goes on."""
        if not self.listens or not self._own_depth:
            return
        self._own_depth -= 1
        timer = self._timer() if self._wanted and not self._own_depth else None
        if timer is not None:
            self._open(timer)

    def leave(self) -> None:
        """Leave the phase that goes on, if any."""
        self._wanted = ""
        self._close()

    def _begun(self, *, is_from_start: bool) -> PhaseTimer | None:
        if self._events is not None:
            return self._events.begin(is_from_start=is_from_start)
        return self._timer()

    def _enter(self, timer: PhaseTimer, name: str) -> None:
        self._close()
        self._wanted = name
        if not self._own_depth:
            self._open(timer)

    def _open(self, timer: PhaseTimer) -> None:
        self._phase = timer.phase(self._wanted)
        self._phase.__enter__()

    def _close(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__(None, None, None)
