"""Detects input waits and phases from what the training does with torch.

*input* is the wait for a DataLoader: for its batches, and for its workers to start and to end.
*forward* is the outermost calls of modules, and what follows the last of them until backward begins
(the loss) or a collective does. Between two calls, it is forward if the second one depends on the
first: if its inputs require gradients. If the loop calls no modules, and before its first backward
pass, forward lasts from the arrival of a batch to the start of backward; if nothing reveals when a
batch arrives either, it is left out. *backward* and *optimizer* last while torch works on them.
*communication* lasts as long as a collective holds the training thread, wherever it is called, and
*saving* as long as a function does that saves a checkpoint. Time in between belongs to no phase.

DataLoaders (`loader_waits`), `torch.autograd.backward`, optimizers, and the collectives and
functions that save (`timed_calls`) are wrapped while a `PhaseWatch` is installed. Each wrapper
calls the original with the same arguments and passes on what it returns or raises.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from stepscope.capture.steps.attempt import attempt
from stepscope.capture.steps.forward_calls import ForwardCalls
from stepscope.capture.steps.loader_waits import LoaderWaits
from stepscope.capture.steps.phase_timer import Depths, Listener, PhaseTimer
from stepscope.capture.steps.replacements import Replacements
from stepscope.capture.steps.timed_calls import TimedCalls
from stepscope.capture.steps.uncompiled import out_of_compiler, uncompiled
from stepscope.run.step_record import BACKWARD, FORWARD, OPTIMIZER


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
        is_forward: Called before an outermost call of a module, and returns whether it is part of
            the forward phase. None: the owner says where forward begins.
    """

    def __init__(
        self,
        listener: Listener,
        running: Callable[[], PhaseTimer | None] | None = None,
        untimed_ended: Callable[[], None] | None = None,
        is_forward: Callable[[], bool] | None = None,
    ) -> None:
        self._listener = listener
        self._running = running
        self._phase: AbstractContextManager[None] | None = None
        self._wanted: tuple[PhaseTimer, str] | None = None
        self._depths = Depths()
        self._is_in_closure = False
        self._has_gone_on = False
        self._stepped_in_backward: Any = None
        self._named_for_backward: weakref.ref[Any] | None = None
        self._replacements = Replacements()
        self.loaders = LoaderWaits(listener, self, self._depths, untimed_ended, running)
        self._timed_calls: TimedCalls | None = None
        self._is_forward = is_forward
        self._forward_ended_ns = 0
        self.forward_calls: ForwardCalls | None = None
        if is_forward is not None:
            self.forward_calls = ForwardCalls(listener.listens, self._begin_call, self._end_call)

    # -- into torch and out of it ---------------------------------------------------------------

    def install(self, *, fetches: bool = True) -> None:
        """Wrap the functions that the training will use.

        Args:
            fetches: Whether to time waits for DataLoaders; False if the owner does that itself.
        """
        from torch import autograd
        from torch.optim import optimizer as optimizers

        put_back = self._replacements
        if fetches:
            self.loaders.install(put_back)
        put_back.replace(autograd, "backward", self.around_backward)
        before = optimizers.register_optimizer_step_pre_hook(uncompiled(self.before_optimizer))
        after = optimizers.register_optimizer_step_post_hook(uncompiled(self.after_optimizer))
        put_back.undo_by(before.remove)
        put_back.undo_by(after.remove)
        if self._running is not None:
            calls = TimedCalls(self._listener, self._running, self, self._depths, put_back)
            calls.install()
            self._timed_calls = calls

    def remove(self) -> None:
        """Restore torch."""
        self.leave()
        if self.forward_calls is not None:
            self.forward_calls.remove()
        self._replacements.put_back()

    # -- phases ---------------------------------------------------------------------------------

    def enter(self, profiler: PhaseTimer, name: str) -> None:
        """Begin a phase, ending the open one."""
        self.leave()
        self._wanted = (profiler, name)
        self.resume()

    def batch_came(self, timer: PhaseTimer) -> None:
        """Begin the forward phase where a batch arrives, if calls of modules do not reveal it."""
        if self.forward_calls is None or not self.forward_calls.is_found:
            self.enter(timer, FORWARD)

    def leave(self) -> None:
        """End the open phase, if any."""
        self._leave_out_tail()
        self._wanted = None
        self.interrupt()

    def end_after_calls(self) -> None:
        """End the forward phase between calls of modules: something else begins, a collective."""
        if self._forward_ended_ns:
            self.leave()

    def _leave_out_tail(self) -> None:
        """Take what followed the last call of a module out of the forward phase."""
        ended_ns, self._forward_ended_ns = self._forward_ended_ns, 0
        if ended_ns and self._phase is not None and self._wanted is not None:
            self._wanted[0].leave_out(time.perf_counter_ns() - ended_ns)

    def _begin_call(self, inputs: Iterable[Any]) -> None:
        """Begin or continue the forward phase: the loop calls a module."""
        depths = self._depths
        is_inside = depths.backward or depths.own or (depths.optimizer and not self._is_in_closure)
        timer = None if is_inside or self._running is None else self._running()
        if timer is None or (self._is_forward is not None and not self._is_forward()):
            return
        if not self.is_in(FORWARD):
            self.enter(timer, FORWARD)
        elif any(getattr(one, "requires_grad", False) is True for one in inputs):
            self._forward_ended_ns = 0
        else:
            self._leave_out_tail()

    def _end_call(self) -> None:
        """Note where the call ended; without gradients, no loss follows."""
        if not self.is_in(FORWARD) or self._depths.own:
            return
        if records_gradients():
            self._forward_ended_ns = time.perf_counter_ns()
        else:
            self.leave()

    def is_in(self, name: str) -> bool:
        """Whether this phase was entered last, and has not ended."""
        return self._wanted is not None and self._wanted[1] == name

    @property
    def saves(self) -> int:
        """How often the training has saved so far."""
        return self._timed_calls.saves if self._timed_calls is not None else 0

    @property
    def is_open(self) -> bool:
        """Whether one of these phases is open, or a backward pass is."""
        return self._phase is not None or self._depths.backward > 0

    def forget(self) -> None:
        """Forget the open phase: after a fork, it belongs to the parent."""
        self._phase = self._wanted = self._stepped_in_backward = None
        self._forward_ended_ns = 0
        if self.forward_calls is not None:
            self.forward_calls.forget()

    def stand_back(self) -> None:
        """Interrupt our phases: the loop begins a phase of its own."""
        if self._listener.listens():
            self._depths.own += 1
            self.interrupt()

    def come_back(self) -> None:
        """Resume our phases: a phase of the loop's own has ended."""
        if self._depths.own and self._listener.listens():
            self._depths.own -= 1
            self.resume()

    def resume(self) -> None:
        """Go on with the phase that was entered last, unless the loop has one of its own."""
        if self._wanted is not None and not self._depths.own:
            timer, name = self._wanted
            self._phase = timer.phase(name)
            self._phase.__enter__()
            if self._forward_ended_ns:
                self._forward_ended_ns = time.perf_counter_ns()

    def interrupt(self) -> None:
        """End the open phase for now."""
        phase, self._phase = self._phase, None
        if phase is not None:
            phase.__exit__(None, None, None)

    # -- what is wrapped ------------------------------------------------------------------------

    def around_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `torch.autograd.backward` to time it as a phase."""

        @functools.wraps(backward)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if self._depths.backward or not (profiler := attempt(self._begin_backward)):
                return backward(*arguments, **keywords)
            self._depths.backward += 1
            self._stepped_in_backward = None
            try:
                with nullcontext() if self._depths.own else profiler.phase(BACKWARD):
                    result = backward(*arguments, **keywords)
            finally:
                self._depths.backward -= 1
            if self._stepped_in_backward is not None:
                attempt(self._name_stepped)
            return result

        return out_of_compiler(timed)

    def _begin_backward(self) -> PhaseTimer | None:
        profiler = self._listener.before_backward() if self._listener.listens() else None
        if profiler is None:
            return None
        self._forward_ended_ns = 0
        if self.forward_calls is not None:
            self.forward_calls.backward_begins()
        if not self._depths.optimizer or self._is_in_closure:
            self.leave()
        else:
            self._has_gone_on = True
        profiler.note_training_work()
        return profiler

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
            self._depths.optimizer, self._has_gone_on = 0, False
        self._depths.optimizer += 1
        if self._depths.optimizer > 1:
            return None  # nested, as in wrapped optimizers
        self.leave()
        profiler.note_training_work()
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
            if self._depths.backward and _is_in_autograd():
                self._keep_stepped(optimizer)  # in autograd's own thread, as for a GPU
            return
        if not self._depths.optimizer:
            return
        self._depths.optimizer -= 1
        if self._depths.optimizer:
            return
        self._has_gone_on = False
        self.leave()
        if self._depths.backward:
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


def records_gradients() -> bool:
    """Whether operations of this thread are recorded for a backward pass."""
    import torch

    return torch.is_grad_enabled()


def _is_in_autograd() -> bool:
    """Whether this thread is computing a gradient."""
    import torch

    return torch._C._current_autograd_node() is not None
