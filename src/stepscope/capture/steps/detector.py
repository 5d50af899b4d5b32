"""Detects what the training does with torch: what it waits for, and its phases.

`torch.autograd.backward`, optimizers, `zero_grad`, the modules that the loop calls
(`forward_calls`), DataLoaders (`loader_waits`), and collectives and functions that save
(`timed_calls`) are wrapped while a `Detector` is installed. Each wrapper notes an event, calls the
original with the same arguments, and passes on what it returns or raises. The step's phases are
computed from the events where it ends (`phase_times`); a `Policy` decides what the events mean to
the steps.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any

from stepscope.capture.containment import attempt, missed
from stepscope.capture.steps.loader_waits import LoaderWaits
from stepscope.capture.steps.phase_times import (
    BACKWARD_BEGINS,
    BACKWARD_ENDS,
    CLOSURE_BEGINS,
    CLOSURE_ENDS,
    ENTER,
    LEAVE,
    OPTIMIZER_BEGINS,
    OPTIMIZER_ENDS,
    ZERO_GRAD_BEGINS,
    ZERO_GRAD_ENDS,
)
from stepscope.capture.steps.replacements import (
    Replacements,
    compiler_at_work,
    is_compiling,
    kept_from_dynamo,
)
from stepscope.capture.steps.timed_calls import ForwardCalls, TimedCalls
from stepscope.run.step_record import FORWARD

if TYPE_CHECKING:
    from stepscope.capture.steps.core import StepCore


class Policy:
    """What those who record a training make of what it does; by default, everything is timed."""

    def begins(self) -> bool:
        """The training learns while nothing is recorded; returns whether to follow that."""
        return True

    def wants_batch(self, iterator: Any) -> bool:  # noqa: ARG002
        """A DataLoader's iterator is about to fetch a batch; returns whether to time that."""
        return True

    def batch_came(self, iterator: Any, batch: Any) -> None:
        """A fetch that was timed has returned a batch."""

    def data_ended(self) -> None:
        """An iterator has no more batches, and the wait for them was not timed."""

    def epoch_ended(self, iterator: Any, took_ns: int) -> None:
        """An iterator has no more batches, and the wait for them, its workers' end, was timed."""

    def wants_workers(self, data: Any, *, is_start: bool) -> bool:  # noqa: ARG002
        """A DataLoader over this data makes an iterator, or ends the workers of one."""
        return True

    def backward_begins(self) -> None:
        """A backward pass begins."""

    def optimizer_ended(self, optimizer: Any) -> None:
        """An optimizer's step has ended, and no other one surrounds it.

        Of optimizers that step within a backward pass, one is named when the pass has ended.
        """

    def is_forward_without_gradients(self) -> bool:
        """Whether a module that the loop calls now, without gradients, is part of forward."""
        return True

    def mode_changed(self, module: Any, is_training: bool) -> None:
        """A model was set to evaluation, or back to training after that."""


class Detector:
    """The hooks in torch. Only the thread that made it counts, or the one it is given.

    Args:
        policy: Decides what is timed, and learns what happened.
        finds_forward: Whether to look for the modules whose calls are the forward passes. If not,
            the policy says where forward begins.
        times_calls: Whether to time collectives, saving, and waits for threads that read batches.
        finds_modes: Whether to report models that are set to evaluation and back.
        finds_evaluations: Whether evaluations between two loops are recorded.

    Attributes:
        core: Where events are noted; None while nothing is recorded.
        is_off: Whether nothing is noticed, as in a fork.
        calls: Reports the outermost calls of modules, or None.
        saves: How often the training has saved so far.
        own_fetches: How many waits for a batch of the loop's own there are now: a DataLoader's
            wait inside is part of them.
        is_in_backward: Whether a backward pass is being followed.
        is_excluded: Whether backward passes and optimizers belong to no step now.
        has_stepped: Whether an optimizer has stepped; for others to reset.
        before_optimizer: Hook that torch calls before any optimizer step.
        after_optimizer: Hook that torch calls after any optimizer step.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        finds_forward: bool = False,
        times_calls: bool = False,
        finds_modes: bool = False,
        finds_evaluations: bool = False,
    ) -> None:
        self.policy = policy
        self.core: StepCore | None = None
        self.thread = get_ident()
        self.is_off = False
        self.finds_evaluations = finds_evaluations
        self.saves = 0
        self.calls = ForwardCalls(self) if finds_forward else None
        self.loaders = LoaderWaits(self, sees_threads=times_calls)
        self.is_in_backward = False
        self.is_excluded = self.has_stepped = False
        self._times_calls = times_calls
        self._finds_modes = finds_modes
        self.own_fetches = 0
        self._optimizers = 0
        self._is_in_closure = False
        self._has_gone_on = False
        self._is_switching = False
        self._stepped: Any = None
        self._named: weakref.ref[Any] | None = None
        self._batch_came = self._asked(Policy.batch_came)
        self._replacements = Replacements()
        self.before_optimizer, self.after_optimizer = self._optimizer_hooks()

    # -- into torch and out of it ---------------------------------------------------------------

    def attach(self, core: StepCore) -> None:
        """Note events there from now on."""
        self.core = core
        core.detector = self

    def install(self, *, fetches: bool = True) -> None:
        """Wrap the functions that the training will use.

        Args:
            fetches: Whether to time waits for DataLoaders; False if the owner does that itself.
        """
        import torch
        from torch.optim import optimizer as optimizers

        replacements = self._replacements
        if fetches:
            self.loaders.install(replacements)
        replacements.replace(torch.autograd, "backward", self.around_backward)
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            replacements.replace(owner, "zero_grad", self._around_zero_grad)

        hooks = optimizers.register_optimizer_step_pre_hook(self.before_optimizer)
        replacements.undo_by(hooks.remove)
        hooks = optimizers.register_optimizer_step_post_hook(self.after_optimizer)
        replacements.undo_by(hooks.remove)
        if self._times_calls:
            TimedCalls(self, replacements).install()
        if self._finds_modes:
            replacements.replace(torch.nn.Module, "eval", self._around_eval)

    def remove(self) -> None:
        """Restore torch. What others wrapped stays in place and notices nothing more."""
        self.leave()
        self.is_off = True
        if self.calls is not None:
            self.calls.remove()
        self._replacements.restore()

    def forget(self) -> None:
        """Reset the state after a fork: what happens in the parent does not happen here."""
        self.thread = get_ident()
        self.core = None
        self.is_in_backward = self._is_in_closure = self._has_gone_on = False
        self._optimizers = 0
        self._stepped = None
        if self.calls is not None:
            self.calls.forget()

    def listens(self) -> bool:
        """Whether this is the training thread, in its process."""
        thread = get_ident()
        if self.is_off or thread != self.thread:
            return False
        return self.core is None or self.core.thread == thread

    # -- phases ---------------------------------------------------------------------------------

    def note(self, kind: str, value: Any = None) -> None:
        """Note an event if something is recorded."""
        if self.core is not None:
            self.core.note(kind, value)

    def enter(self, name: str) -> None:
        """Begin a phase, ending the open one."""
        self.note(ENTER, name)

    def leave(self) -> None:
        """End the open phase, if there may be one."""
        self._optimizers = 0  # left behind by an optimizer's step that raised
        if self.core is not None and self.core.has_notes:
            self.core.note(LEAVE)

    def begin_forward(self) -> None:
        """Begin the forward phase where a batch arrives, if calls of modules do not reveal it."""
        if self.calls is None or not self.calls.is_found:
            self.note(ENTER, FORWARD)

    def is_in(self, name: str) -> bool:
        """Whether this phase was entered last, and has not ended."""
        return self.core is not None and self.core.phases_so_far().detected == name

    @property
    def is_in_phase(self) -> bool:
        """Whether a phase is open, or a backward pass."""
        return self.core is not None and bool(self.core.phases_so_far().open)

    # -- the batches of the loop's own `watch` --------------------------------------------------

    # Here, too, each further call of a function is one that every step pays for.

    def begin_own_fetch(self) -> None:
        """Begin the loop's own wait for a batch: the open phase ends, if there may be one."""
        try:
            thread, core = get_ident(), self.core
            if (
                thread == self.thread
                and not self.is_off
                and (core is None or core.thread == thread)
            ):
                self.own_fetches += 1
                self._optimizers = 0
                if core is not None and core.has_notes:
                    core.note(LEAVE)
        except Exception as error:  # noqa: BLE001 - the training must go on
            missed(error)

    def end_own_fetch(self, has_batch: bool) -> None:
        """End it. If a batch has arrived, the forward phase begins."""
        try:
            thread, core = get_ident(), self.core
            if (
                thread == self.thread
                and not self.is_off
                and (core is None or core.thread == thread)
            ):
                if self.own_fetches:
                    self.own_fetches -= 1
                if has_batch:
                    if self._batch_came is not None:
                        self._batch_came(None, None)
                    if core is not None and (self.calls is None or not self.calls.is_found):
                        core.note(ENTER, FORWARD)
        except Exception as error:  # noqa: BLE001 - the training must go on
            missed(error)

    # -- what is wrapped ------------------------------------------------------------------------

    def _asked(self, default: Callable[..., Any]) -> Callable[..., Any] | None:
        """The policy's own method in place of a default one, which does nothing; None without."""
        method = getattr(self.policy, default.__name__)
        return None if getattr(method, "__func__", None) is default else method

    def around_backward(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `torch.autograd.backward` to time it as a phase."""
        begins, backward_begins = self.policy.begins, self._asked(Policy.backward_begins)
        compiles = compiler_at_work()

        # In here, each call of a function of ours is one more that every step pays for.
        @functools.wraps(backward)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            if compiles() is not None:
                return kept.aside(*arguments, **keywords)
            is_followed = False
            try:
                thread = get_ident()
                if (
                    thread == self.thread
                    and not (self.is_off or self.is_in_backward or self.is_excluded)
                    and (begins() if (core := self.core) is None else core.thread == thread)
                ):
                    is_followed = True
                    if backward_begins is not None:
                        backward_begins()
                    calls = self.calls
                    if calls is not None and not calls.calls:
                        calls.look()
                    elif calls is not None:
                        calls.calls = 0
                    if self._optimizers and not self._is_in_closure:
                        self._has_gone_on = True
                    if self.core is not None:
                        self.core.note(BACKWARD_BEGINS)
                        if (loaders := self.core.loaders) is not None:
                            loaders.is_trained_on = True
            except Exception as error:  # noqa: BLE001 - the training must go on
                missed(error)
                is_followed = False
            if not is_followed:
                return backward(*arguments, **keywords)
            self.is_in_backward, self._stepped = True, None
            try:
                result = backward(*arguments, **keywords)
            finally:
                self.is_in_backward = False
                if self.core is not None:
                    self.core.note(BACKWARD_ENDS)
            if self._stepped is not None:
                attempt(self._name_stepped)
            return result

        kept = kept_from_dynamo(timed)
        return kept.installed

    def _around_zero_grad(self, zero_grad: Callable[..., None]) -> Callable[..., None]:
        """Wrap the `zero_grad` of optimizers or modules: to free gradients takes its time."""
        from torch.compiler import is_dynamo_compiling

        @functools.wraps(zero_grad)
        def timed(*arguments: Any, **keywords: Any) -> None:
            # When torch compiles the caller, it must find its own function.
            core = None if is_dynamo_compiling() or self.is_excluded else self.core
            if core is None or core.thread != get_ident() or self.is_off:
                return zero_grad(*arguments, **keywords)
            core.note(ZERO_GRAD_BEGINS)
            try:
                return zero_grad(*arguments, **keywords)
            finally:
                core.note(ZERO_GRAD_ENDS)

        return timed

    def _optimizer_hooks(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        """The hooks around optimizer steps.

        They are functions, no methods: torch keeps what it makes of them there.
        """
        begins, ended = self.policy.begins, self._asked(Policy.optimizer_ended)
        compiles = compiler_at_work()

        def before(optimizer: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            if compiles() is not None:
                return kept_before.aside(optimizer, arguments, keywords)
            # A closure is timed by its content.
            try:
                thread = get_ident()
                if self.is_off or self.is_excluded or thread != self.thread:
                    return None
                if not (begins() if (core := self.core) is None else core.thread == thread):
                    return None
                if self._has_gone_on:
                    # A backward pass since then: the step that began has raised, and the caller
                    # caught it.
                    self._optimizers, self._has_gone_on = 0, False
                self._optimizers += 1
                if self._optimizers > 1:
                    return None  # nested, as in wrapped optimizers
                if self.core is not None:
                    self.core.note(OPTIMIZER_BEGINS)
                if "closure" in keywords and callable(keywords["closure"]):
                    timed = self._around_closure(keywords["closure"])
                    return arguments, {**keywords, "closure": timed}
                if len(arguments) > 1 and callable(arguments[1]):  # the first is the optimizer
                    timed = self._around_closure(arguments[1])
                    return (arguments[0], timed, *arguments[2:]), keywords
            except Exception as error:  # noqa: BLE001 - the training must go on
                missed(error)
            return None

        def after(optimizer: Any, *given: Any) -> None:
            if compiles() is not None:
                kept_after.aside(optimizer, *given)
                return
            try:
                thread, core = get_ident(), self.core
                is_ours = core is None or core.thread == thread
                if self.is_off or thread != self.thread or not is_ours:
                    if self.is_in_backward and _is_in_autograd():
                        self._keep_stepped(optimizer)  # in autograd's own thread, as for a GPU
                    return
                if self._optimizers != 1:
                    self._optimizers = max(0, self._optimizers - 1)
                    return
                self._optimizers, self._has_gone_on = 0, False
                if core is not None:
                    core.note(OPTIMIZER_ENDS)
                if self.is_in_backward:
                    self._keep_stepped(optimizer)
                else:
                    self.has_stepped = True
                    if ended is not None:
                        ended(optimizer)
            except Exception as error:  # noqa: BLE001 - the training must go on
                missed(error)

        kept_before, kept_after = kept_from_dynamo(before), kept_from_dynamo(after)
        return kept_before.installed, kept_after.installed

    def _around_closure(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the forward and backward that a script passes to the optimizer as a closure."""

        @functools.wraps(closure)
        def timed(*arguments: Any, **keywords: Any) -> Any:
            self._is_in_closure = True
            has_calls = self.calls is not None and self.calls.is_found
            attempt(self.note, CLOSURE_BEGINS, not has_calls)
            try:
                return closure(*arguments, **keywords)
            finally:
                self._is_in_closure = False
                attempt(self.note, CLOSURE_ENDS)

        return timed

    def _keep_stepped(self, optimizer: Any) -> None:
        """Remember which optimizer to name at the end of the pass: the one named before, if any.

        A hook of each parameter may step an optimizer of its own as soon as the gradient is there.
        Only the end of the pass is the end of them all, and torch's profiler can neither be started
        nor stopped before that.
        """
        named = self._named() if self._named is not None else None
        if self._stepped is None or optimizer is named:
            self._stepped = optimizer

    def _name_stepped(self) -> None:
        optimizer, self._stepped = self._stepped, None
        self._named = weakref.ref(optimizer)
        self.has_stepped = True
        self.policy.optimizer_ended(optimizer)

    # -- modes of modules -----------------------------------------------------------------------

    def _around_eval(self, evaluate: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `Module.eval`, and after a call of it `Module.train`, until that is called.

        `train` calls itself for every module within, which many loops do in every step: it must
        cost nothing while no model is set to evaluation.
        """
        from torch.nn import Module

        train = Module.train
        of_train = Replacements()
        self._replacements.undo_by(of_train.restore)

        @functools.wraps(evaluate)
        def evaluated(module: Any) -> Any:
            if not self._is_outermost_switch():
                return evaluate(module)
            if Module.train is train:
                of_train.put(Module, "train", train, trained)
            return self._switch(module, evaluate)

        @functools.wraps(train)
        def trained(module: Any, mode: bool = True) -> Any:
            if not self._is_outermost_switch():
                return train(module, mode)
            if mode:
                of_train.restore()
            return self._switch(module, train, mode)

        return evaluated

    def _is_outermost_switch(self) -> bool:
        """Whether this call is no call for a module within another."""
        # When torch compiles the caller, it must find its own function.
        return not self._is_switching and not is_compiling() and bool(attempt(self.listens))

    def _switch(self, module: Any, switch: Callable[..., Any], *mode: Any) -> Any:
        self._is_switching = True
        try:
            result = switch(module, *mode)
        finally:
            self._is_switching = False
        attempt(self.policy.mode_changed, module, bool(module.training))
        return result


def _is_in_autograd() -> bool:
    """Whether this thread is computing a gradient."""
    import torch

    return torch._C._current_autograd_node() is not None
