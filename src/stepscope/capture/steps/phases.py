"""Detects input waits and phases from what the training does with torch.

*input* is the wait for a DataLoader: for its batches, and for its workers to start and to end.
*forward* lasts from the arrival of the batch to the
start of backward. *backward* and *optimizer* last as long as torch works on them. *communication*
lasts as long as a collective holds the training thread, wherever it is called, and *saving* as long
as a function does that saves a checkpoint. Time in between belongs to no phase. If nothing reveals
when a batch arrives, forward is left out.

DataLoaders, `torch.autograd.backward`, optimizers, the collectives of torch.distributed and the
functions that save are wrapped while a `PhaseWatch` is installed: `torch.save`, and those of
`_SAVERS` if their module is imported, or once it is. Each wrapper calls the original with the
same arguments and passes on what it returns or raises.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FunctionType, ModuleType
from typing import Any, Protocol, TypeVar, cast

from stepscope.capture.steps.attempt import attempt
from stepscope.capture.steps.imports import when_imported
from stepscope.capture.steps.loaders import has_workers, kept_iterator
from stepscope.run.step_record import BACKWARD, COMMUNICATION, FORWARD, OPTIMIZER, SAVING

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

_SAVERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "torch.distributed.checkpoint": (
        ("save", "async_save"),  # of the second, what it does before it returns
        ("torch.distributed.checkpoint.state_dict_saver",),
    ),
    "safetensors.torch": (("save_file",), ()),
}
"""Module to its functions that save, and to the other modules that have them under these names."""

_Result = TypeVar("_Result")


class PhaseTimer(Protocol):
    """What times phases and waits: a profiler."""

    def phase(self, name: str, /) -> AbstractContextManager[None]:
        """Time the block as a phase."""

    def waiting(self) -> AbstractContextManager[None]:
        """Time the block as the wait for a batch."""

    def see_loader(self, iterator: Any, /) -> None:
        """Take notice of the iterator that a batch came from."""

    def loader_workers_changed(self, duration_ns: int, /) -> None:
        """So much of the wait went into starting or ending a loader's workers."""


class Listener(Protocol):
    """Is told about calls into torch and decides what is timed; None means not timed."""

    def listens(self) -> bool:
        """Whether this process and thread is the one whose steps are recorded."""

    def before_fetch(self, iterator: Any) -> PhaseTimer | None:
        """An iterator over a DataLoader is about to fetch a batch."""

    def after_fetch(self, profiler: Any, batch: Any) -> None:
        """The iterator has returned a batch."""

    def before_workers(self, data: Any, *, is_start: bool) -> PhaseTimer | None:
        """A DataLoader over this data makes an iterator, or ends the workers of one."""

    def before_backward(self) -> PhaseTimer | None:
        """A backward pass is about to begin."""

    def before_optimizer(self) -> PhaseTimer | None:
        """An optimizer step is about to begin."""

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer step has ended, and no other one surrounds it.

        Of optimizers that step within a backward pass, one is named when the pass has ended.
        """


class PhaseWatch:
    """Times waits, "backward", "optimizer", and the phases that its owner enters.

    At most one of these phases is open at a time: the next one ends it. Phases that the loop names
    itself come first: while one is open (`stand_back`), none of these is.

    Args:
        listener: Is told about the calls, and decides.
        running: Returns what times collectives and saving, or None while nothing does. None to
            ignore both.
        untimed_ended: Called where an iterator has no more batches and the listener does not want
            the wait for them timed. None: not called.
    """

    def __init__(
        self,
        listener: Listener,
        running: Callable[[], PhaseTimer | None] | None = None,
        untimed_ended: Callable[[], None] | None = None,
    ) -> None:
        self._listener = listener
        self._running = running
        self._untimed_ended = untimed_ended
        self._phase: AbstractContextManager[None] | None = None
        self._wanted: tuple[PhaseTimer, str] | None = None
        self._own_depth = 0
        self._fetch_depth = 0
        self._fetching: PhaseTimer | None = None
        self._backward_depth = 0
        self._optimizer_depth = 0
        self._communication_depth = 0
        self._is_in_closure = False
        self._has_gone_on = False
        self._stepped_in_backward: Any = None
        self._named_for_backward: weakref.ref[Any] | None = None
        self._undo: list[Callable[[], None]] = []

    # -- into torch and out of it ---------------------------------------------------------------

    def install(self, *, fetches: bool = True) -> None:
        """Wrap the functions that the training will use.

        Args:
            fetches: Whether to time waits for DataLoaders; False if the owner does that itself.
        """
        import torch.utils.data.dataloader as loaders
        from torch import autograd
        from torch.optim import optimizer as optimizers

        if fetches:
            self._replace(loaders._BaseDataLoaderIter, "__next__", self.around_fetch)
            self._replace(loaders.DataLoader, "__iter__", self._around_start)
            with_workers = loaders._MultiProcessingDataLoaderIter
            self._replace(with_workers, "_shutdown_workers", self._around_end)
        self._replace(autograd, "backward", self.around_backward)
        before = optimizers.register_optimizer_step_pre_hook(_uncompiled(self.before_optimizer))
        after = optimizers.register_optimizer_step_post_hook(_uncompiled(self.after_optimizer))
        self._undo += [before.remove, after.remove]
        if self._running is not None:
            self._wrap_collectives(self._running)
            self._wrap_saving(self._running)

    def _wrap_collectives(self, running: Callable[[], PhaseTimer | None]) -> None:
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
            wrapped = self._around_collective(original, running)
            for owner in (distributed, distributed_c10d):
                if getattr(owner, name, None) is original:
                    self._put(owner, name, original, wrapped)

    def _wrap_saving(self, running: Callable[[], PhaseTimer | None]) -> None:
        import torch
        from torch import serialization

        self._wrap_saver("save", (serialization, torch), running)
        for module, (names, others) in _SAVERS.items():
            wrap = functools.partial(self._wrap_savers, names, others, running)
            self._undo.append(when_imported(module, wrap))

    def _wrap_savers(
        self,
        names: tuple[str, ...],
        others: tuple[str, ...],
        running: Callable[[], PhaseTimer | None],
        module: ModuleType,
    ) -> None:
        owners = (module, *(sys.modules[name] for name in others if name in sys.modules))
        for name in names:
            if hasattr(module, name):
                self._wrap_saver(name, owners, running)

    def _wrap_saver(
        self, name: str, owners: tuple[Any, ...], running: Callable[[], PhaseTimer | None]
    ) -> None:
        """Wrap a function of the first owner, which others may have, too."""
        original = getattr(owners[0], name)
        wrapped = self._around_saving(original, running)
        for owner in owners:
            if getattr(owner, name, None) is original:
                self._put(owner, name, original, wrapped)

    def _replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        self._put(owner, name, original, wrap(original))

    def _put(self, owner: Any, name: str, original: Any, wrapped: Any) -> None:
        setattr(owner, name, wrapped)

        def put_back() -> None:
            # If other code wrapped it again, ours stays inside and does nothing.
            if getattr(owner, name) is wrapped:
                setattr(owner, name, original)

        self._undo.append(put_back)

    def remove(self) -> None:
        """Restore torch."""
        self.leave()
        while self._undo:
            self._undo.pop()()

    # -- phases ---------------------------------------------------------------------------------

    def enter(self, profiler: PhaseTimer, name: str) -> None:
        """Begin a phase, ending the open one."""
        self.leave()
        self._wanted = (profiler, name)
        self._open()

    def leave(self) -> None:
        """End the open phase, if any."""
        self._wanted = None
        self._close()

    def is_in(self, name: str) -> bool:
        """Whether this phase was entered last, and has not ended."""
        return self._wanted is not None and self._wanted[1] == name

    @property
    def is_open(self) -> bool:
        """Whether one of these phases is open, or a backward pass is."""
        return self._phase is not None or self._backward_depth > 0

    def forget(self) -> None:
        """Forget the open phase: after a fork, it belongs to the parent."""
        self._phase = self._wanted = self._stepped_in_backward = None

    def stand_back(self) -> None:
        """Interrupt our phases: the loop begins a phase of its own."""
        if self._listener.listens():
            self._own_depth += 1
            self._close()

    def come_back(self) -> None:
        """Resume our phases: a phase of the loop's own has ended."""
        if self._own_depth and self._listener.listens():
            self._own_depth -= 1
            self._open()

    def _open(self) -> None:
        if self._wanted is not None and not self._own_depth:
            timer, name = self._wanted
            self._phase = timer.phase(name)
            self._phase.__enter__()

    def _close(self) -> None:
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__(None, None, None)

    # -- what is wrapped ------------------------------------------------------------------------

    def around_fetch(self, fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap `__next__` of a DataLoader's iterator to time its wait."""

        @functools.wraps(fetch)
        def next_batch(iterator: Any) -> Any:
            if self._fetch_depth:
                return fetch(iterator)
            profiler = attempt(self._begin_fetch, iterator)
            if not profiler:
                try:
                    return fetch(iterator)
                except StopIteration:
                    self._end_untimed()
                    raise
            self._fetch_depth += 1
            self._fetching = profiler
            try:
                with profiler.waiting():
                    batch = fetch(iterator)
            finally:
                self._fetching = None
                self._fetch_depth -= 1
            attempt(self._listener.after_fetch, profiler, batch)
            attempt(profiler.see_loader, iterator)
            return batch

        return next_batch

    def _around_start(self, start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap `__iter__` of a DataLoader, which starts its workers, to time it as a wait."""

        @functools.wraps(start)
        def iterator_of(loader: Any) -> Any:
            if self._fetch_depth:
                return start(loader)
            data = getattr(loader, "dataset", None)
            timer = attempt(self._before_workers, data, True)
            if not timer:
                return start(loader)
            before = attempt(kept_iterator, loader)
            with attempt(self._waiting_for_workers, timer) or nullcontext([]) as noted:
                iterator = start(loader)
                if iterator is not before and attempt(has_workers, iterator):
                    noted.append(timer)
            return iterator

        return iterator_of

    def _around_end(self, end: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Wrap the method of a DataLoader's iterator that ends its workers.

        It is called where the data ends, and where the iterator is dropped: by a loop that is left.
        """

        @functools.wraps(end)
        def ended(iterator: Any) -> Any:
            if getattr(iterator, "_shutdown", True):
                return end(iterator)
            if self._fetch_depth:
                # The wait for the batch that does not come: it is timed already.
                started_ns = time.perf_counter_ns()
                try:
                    return end(iterator)
                finally:
                    lasted_ns = time.perf_counter_ns() - started_ns
                    if self._fetching is not None:
                        attempt(self._fetching.loader_workers_changed, lasted_ns)
            timer = attempt(self._before_workers, getattr(iterator, "_dataset", None), False)
            if not timer:
                return end(iterator)
            with attempt(self._waiting_for_workers, timer) or nullcontext([]) as noted:
                noted.append(timer)
                return end(iterator)

        return ended

    def _before_workers(self, data: Any, is_start: bool) -> PhaseTimer | None:
        # Within a backward pass, the time is that of the pass; within a phase of the loop's own,
        # that of the phase.
        if self._backward_depth or self._own_depth or not self._listener.listens():
            return None
        return self._listener.before_workers(data, is_start=is_start)

    @contextmanager
    def _waiting_for_workers(self, timer: PhaseTimer) -> Iterator[list[PhaseTimer]]:
        """Time the block as a wait, which interrupts the open phase.

        Yields:
            What is to be told how long it took, if workers were started or ended in it.
        """
        noted: list[PhaseTimer] = []
        attempt(self._close)
        self._fetch_depth += 1
        started_ns = time.perf_counter_ns()
        try:
            with timer.waiting():
                yield noted
        finally:
            self._fetch_depth -= 1
            for told in noted:
                attempt(told.loader_workers_changed, time.perf_counter_ns() - started_ns)
            attempt(self._open)

    def _end_untimed(self) -> None:
        if self._untimed_ended is not None and attempt(self._listener.listens):
            attempt(self._untimed_ended)

    def _begin_fetch(self, iterator: Any) -> PhaseTimer | None:
        if not self._listener.listens():
            return None
        profiler = self._listener.before_fetch(iterator)
        if profiler is not None:
            self._optimizer_depth = 0  # left behind by an optimizer step that raised
            self.leave()
        return profiler

    def around_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `torch.autograd.backward` to time it as a phase."""

        @functools.wraps(backward)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if self._backward_depth or not (profiler := attempt(self._begin_backward)):
                return backward(*arguments, **keywords)
            self._backward_depth += 1
            self._stepped_in_backward = None
            try:
                with nullcontext() if self._own_depth else profiler.phase(BACKWARD):
                    result = backward(*arguments, **keywords)
            finally:
                self._backward_depth -= 1
            if self._stepped_in_backward is not None:
                attempt(self._name_stepped)
            return result

        return _out_of_compiler(timed)

    def _begin_backward(self) -> PhaseTimer | None:
        profiler = self._listener.before_backward() if self._listener.listens() else None
        if profiler is None:
            return None
        if not self._optimizer_depth or self._is_in_closure:
            self.leave()
        else:
            self._has_gone_on = True
        return profiler

    def _around_collective(
        self, collective: Callable[..., Any], running: Callable[[], PhaseTimer | None]
    ) -> Callable[..., Any]:
        """Wrap a function of torch.distributed to time it, unless it returns before it is done."""
        from torch.compiler import is_compiling

        @functools.wraps(collective)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            # When torch compiles the caller, it must find its own function.
            if is_compiling():
                return collective(*arguments, **keywords)
            is_inside = self._communication_depth or self._own_depth
            if is_inside or keywords.get("async_op") or not attempt(self._listener.listens):
                return collective(*arguments, **keywords)
            timer = attempt(running)
            if timer is None:
                return collective(*arguments, **keywords)
            self._communication_depth += 1
            try:
                with timer.phase(COMMUNICATION):
                    return collective(*arguments, **keywords)
            finally:
                self._communication_depth -= 1

        return timed

    def _around_saving(
        self, save: Callable[..., Any], running: Callable[[], PhaseTimer | None]
    ) -> Callable[..., Any]:
        """Wrap a function that saves: its time is no part of the phase in which it is called."""

        @functools.wraps(save)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if self._own_depth or self._backward_depth or not attempt(self._listener.listens):
                return save(*arguments, **keywords)
            timer = attempt(running)
            if timer is None:
                return save(*arguments, **keywords)
            attempt(self.stand_back)
            try:
                with timer.phase(SAVING):
                    return save(*arguments, **keywords)
            finally:
                attempt(self.come_back)

        return timed

    def before_optimizer(
        self, _: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Hook that torch calls before any optimizer step; a closure is timed by its content."""
        return attempt(self._begin_optimizer, arguments, keywords)

    def _begin_optimizer(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self._listener.listens():
            return None
        profiler = self._listener.before_optimizer()
        if profiler is None:
            return None
        if self._has_gone_on:
            # A backward pass since then: the step that began has raised, and the caller caught it.
            self._optimizer_depth, self._has_gone_on = 0, False
        self._optimizer_depth += 1
        if self._optimizer_depth > 1:
            return None  # nested, as in wrapped optimizers
        self.enter(profiler, OPTIMIZER)
        if callable(keywords.get("closure")):
            closure = self._around_closure(profiler, keywords["closure"])
            return arguments, {**keywords, "closure": closure}
        if len(arguments) > 1 and callable(arguments[1]):  # the first is the optimizer itself
            closure = self._around_closure(profiler, arguments[1])
            return (arguments[0], closure, *arguments[2:]), keywords
        return None

    def _around_closure(
        self, profiler: PhaseTimer, closure: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Wrap the forward and backward that a script passes to the optimizer as a closure."""

        @functools.wraps(closure)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            attempt(self.enter, profiler, FORWARD)
            self._is_in_closure = True
            try:
                return closure(*arguments, **keywords)
            finally:
                self._is_in_closure = False
                attempt(self.enter, profiler, OPTIMIZER)

        return timed

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Hook that torch calls after any optimizer step."""
        attempt(self._end_optimizer, optimizer)

    def _end_optimizer(self, optimizer: Any) -> None:
        if not self._listener.listens():
            if self._backward_depth and _is_in_autograd():
                self._keep_stepped(optimizer)  # in autograd's own thread, as for a GPU
            return
        if not self._optimizer_depth:
            return
        self._optimizer_depth -= 1
        if self._optimizer_depth:
            return
        self._has_gone_on = False
        self.leave()
        if self._backward_depth:
            self._keep_stepped(optimizer)
        else:
            self._listener.after_optimizer(optimizer)

    def _keep_stepped(self, optimizer: Any) -> None:
        """Remember which optimizer to name at the end of the pass: the one named before, if any.

        A hook of each parameter may step an optimizer of its own as soon as the gradient is there.
        Only the end of the pass is the end of them all, and torch's profiler can neither be started
        nor stopped before that.
        """
        named = self._named_for_backward() if self._named_for_backward is not None else None
        if self._stepped_in_backward is None or optimizer is named:
            self._stepped_in_backward = optimizer

    def _name_stepped(self) -> None:
        optimizer, self._stepped_in_backward = self._stepped_in_backward, None
        self._named_for_backward = weakref.ref(optimizer)
        self._listener.after_optimizer(optimizer)


def _uncompiled(hook: Callable[..., _Result]) -> Callable[..., _Result]:
    """A hook that torch.compile calls and does not try to compile, where it compiles an optimizer.

    It would fail at the first call into the operating system, and warn of it.
    """
    import torch

    def call(*given: Any, **named: Any) -> _Result:
        return hook(*given, **named)

    # As torch.compiler.disable, which loads the compiler; optimizers load it anyway.
    leave_alone = getattr(torch, "_disable_dynamo", None)
    return call if leave_alone is None else leave_alone(call)


def _out_of_compiler(call: Callable[..., _Result]) -> Callable[..., _Result]:
    """A function that torch.compile calls and does not try to compile.

    Unlike `_uncompiled`, it does not load the compiler into a training that does without.
    """
    import torch

    uncompiled = _uncompiled(call)

    @functools.wraps(call)
    def called(*given: Any, **named: Any) -> _Result:
        may_compile = "torch._dynamo" in sys.modules
        return uncompiled(*given, **named) if may_compile else call(*given, **named)

    frames = getattr(torch._C, "_dynamo", None)
    leave_alone = getattr(getattr(frames, "eval_frame", None), "skip_code", None)
    if leave_alone is not None:
        leave_alone(cast("FunctionType", called).__code__)
    return called


def _is_in_autograd() -> bool:
    """Whether this thread is computing a gradient."""
    import torch

    return torch._C._current_autograd_node() is not None
