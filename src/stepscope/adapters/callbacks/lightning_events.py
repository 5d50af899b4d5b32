"""Turns the calls of Lightning's callbacks and profilers into a recording, for both packages.

`stepscope.adapters.lightning` and `stepscope.adapters.pytorch_lightning` combine it with the base
classes of their package. A step ends with the batch after which `trainer.global_step` has
increased: an optimizer step with all the batches whose gradients it used. In manual optimization
with several optimizers, that is one step for all of them.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from typing import Any

from stepscope.adapters.callbacks.training import CallbackBase, identity_of
from stepscope.adapters.profiler import Profiler
from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import identify
from stepscope.run.step_record import CHECKPOINT, EVALUATION

_RANGES = re.compile(
    r"\[(Callback|LightningDataModule)\].*|\[LightningModule\]\w+\.(on_\w+|configure_\w+)"
)
"""Actions that appear in the trace by name. The actions that make up steps are phases instead."""
_HOOKS_OF_STEPS = re.compile(
    r"\[(?:Callback|LightningModule)\].*\."
    r"(on_train_batch_start|on_train_batch_end|on_after_backward|on_before_optimizer_step)"
)
"""Hooks in a step that no phase surrounds."""


_LOSS = re.compile(r"(train(ing)?[_/.])?loss(_step)?", re.IGNORECASE)
"""Names under which modules log the loss of the training."""


def _overrides(owner: object, hook: str) -> bool:
    """Whether a callback or module has a hook of its own, and not just Lightning's empty one."""
    function = getattr(owner, hook, None)
    module = getattr(function, "__module__", None) or ""
    return function is not None and not module.endswith(("callbacks.callback", "core.hooks"))


class _Events(CallbackBase):
    """What the callback and the profiler have in common."""

    _last_step = 0

    def _begin_training(self, trainer: Any, **options: Any) -> None:
        """Start recording, with the loss that the trainer's loggers get, as a number."""
        recorder = self._recorder
        identity = identity_of(trainer.global_rank, trainer.local_rank, trainer.world_size)
        recorder.begin(identity, **options)
        self._last_step = trainer.global_step
        profiler = recorder.profiler
        if not recorder.is_on or profiler is None:
            return
        contain = profiler.session.contain

        def noting_loss(log_metrics: Any) -> Any:
            @functools.wraps(log_metrics)
            def log(*arguments: Any, **named: Any) -> Any:
                with contain("noting the loss"):
                    metrics = named.get("metrics", arguments[0] if arguments else None)
                    if isinstance(metrics, dict) and trainer.training:
                        losses = [metrics[name] for name in metrics if _LOSS.fullmatch(str(name))]
                        recorder.log_loss(losses[-1] if losses else None)
                return log_metrics(*arguments, **named)

            return log

        with contain("following the loggers"):
            for logger in getattr(trainer, "loggers", ()):
                recorder.replaced.replace(logger, "log_metrics", noting_loss)

    def _end_step(self, trainer: Any) -> None:
        """End the step if there was one of the optimizer, by Lightning's own count."""
        recorder, has_stepped = self._recorder, self._recorder.has_stepped
        if trainer is not None:
            before, self._last_step = self._last_step, trainer.global_step
            has_stepped = self._last_step != before
        is_over = (has_stepped or recorder.counts_micro_batches) and recorder.step_ended()
        if is_over and trainer is not None:
            trainer.should_stop = True


class CallbackEvents(_Events):
    """The methods of a Lightning callback."""

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Start recording: the training begins after the sanity check."""
        self._begin_training(trainer)

    def on_train_batch_start(self, _trainer: Any, _module: Any, batch: Any, *_: Any) -> None:
        """Begin the forward phase: a batch has arrived."""
        self._recorder.forward(batch)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """End the step if the optimizer has stepped."""
        self._recorder.leave_phase()
        self._end_step(trainer)

    def on_validation_start(self, *_: Any) -> None:
        """Exclude an evaluation from the steps."""
        self._recorder.suspend_steps(EVALUATION)

    def on_validation_end(self, *_: Any) -> None:
        """Resume the steps after an evaluation."""
        if self._recorder.excluded == EVALUATION:
            self._recorder.resume_steps()

    def on_save_checkpoint(self, *_: Any) -> None:
        """Exclude a checkpoint from the steps; Lightning does not announce its end."""
        if not self._recorder.is_in_step:
            self._recorder.suspend_steps(CHECKPOINT)

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End the recording with the error that ended the training."""
        self._recorder.finish(exception)

    def on_train_end(self, *_: Any) -> None:
        """End the recording."""
        self._recorder.finish()

    def teardown(self, *_: Any, stage: object = "", **__: Any) -> None:
        """End the recording if the training ended without notice, as in the tuner."""
        if stage == "fit":
            self._recorder.warn_of_no_training()
        self._recorder.finish()


class ProfilerEvents(_Events):
    """The methods of a Lightning profiler, which is told when actions start and stop.

    Besides steps and phases, the hooks of callbacks and of the module appear in the trace by name.
    Those that run in a step, outside forward, backward and optimizer, are phases of it: their time
    is known of all steps.
    """

    _lightning_module: Any = None

    def __init__(self, profiler: Profiler | CaptureConfig | None = None, **options: Any) -> None:
        super().__init__(profiler, **options)
        self._open: dict[str, contextlib.AbstractContextManager[object]] = {}
        self._is_timed: dict[str, bool] = {}
        self._error_before: BaseException | None = None

    def start(self, action_name: str) -> None:
        """Handle the start of an action of the trainer."""
        recorder = self._recorder
        if action_name == "run_training_epoch":
            self._begin()
        elif action_name.endswith(".train_dataloader_next"):
            recorder.resume_steps()
            recorder.leave_phase()
            if recorder.is_on and recorder.profiler is not None:
                self._enter(action_name, recorder.profiler.session.steps.waiting())
        elif action_name == "run_training_batch":
            recorder.forward()
        elif action_name == "save_checkpoint":
            self._suspend_steps(CHECKPOINT)
        elif action_name.endswith(".on_save_checkpoint") and not recorder.is_in_step:
            # Older versions have no action around a checkpoint: it ends when the training
            # continues.
            self._suspend_steps(CHECKPOINT)
        elif action_name.endswith(".on_validation_model_eval"):
            self._suspend_steps(EVALUATION)
        elif _RANGES.fullmatch(action_name):
            self._mark(action_name)

    def stop(self, action_name: str) -> None:
        """Handle the end of an action, including one that an error ended."""
        recorder = self._recorder
        opened = self._open.pop(action_name, None)
        if opened is not None:
            opened.__exit__(None, None, None)
        if action_name == "run_training_batch":
            recorder.leave_phase()
            error = sys.exc_info()[1]
            if error is None or error is self._error_before:
                self._end_step(self._trainer())
        elif action_name == "run_training_epoch":
            error = sys.exc_info()[1]
            if error is not None and error is not self._error_before:
                recorder.finish(error)
        elif action_name == "save_checkpoint":
            recorder.resume_steps()
        elif action_name.endswith(".on_validation_model_train"):
            if recorder.excluded:
                recorder.resume_steps()
            else:
                # A checkpoint at its end was excluded separately; the rest belongs to no step
                # either.
                recorder.restart_step()
        elif action_name.startswith("[LightningModule]") and action_name.endswith(".on_train_end"):
            recorder.finish()

    def teardown(self, stage: str | None) -> None:
        """End the recording when the trainer releases its profiler."""
        if getattr(self, "_recorder", None) is not None:
            self._recorder.finish()
        super().teardown(stage)  # type: ignore[misc]

    def _begin(self) -> None:
        # An error that was being handled before the training does not belong to it.
        self._error_before = sys.exc_info()[1]
        if self._recorder.is_on:
            return
        trainer = self._trainer()
        if trainer is None:
            self._recorder.begin(identify(), times_fetches=False)
        else:
            self._begin_training(trainer, times_fetches=False)

    def _trainer(self) -> Any:
        """The trainer, which Lightning makes available to profilers through the module."""
        return getattr(self._lightning_module, "_trainer", None)

    def _suspend_steps(self, kind: str) -> None:
        """Exclude what follows from the steps. The phase of the hook that does it ends here."""
        for action_name in [name for name in self._open if self._is_timed.get(name)]:
            self._open.pop(action_name).__exit__(None, None, None)
        self._recorder.suspend_steps(kind)

    def _mark(self, action_name: str) -> None:
        recorder, profiler = self._recorder, self._recorder.profiler
        if not recorder.is_on or profiler is None:
            return
        # Callbacks are named with all their settings in braces.
        name = re.sub(r"\{.*\}", "", action_name)
        if not recorder.excluded and not recorder.is_in_phase and self._times(action_name):
            self._enter(action_name, profiler.phase(name))
        elif profiler.session.steps.recording is not None:
            import torch

            self._enter(action_name, torch.profiler.record_function(name))

    def _times(self, action_name: str) -> bool:
        """Whether a hook is timed in every step: one that does something.

        Lightning announces every hook of every callback, most of which are empty.
        """
        known = self._is_timed.get(action_name)
        if known is None:
            found = _HOOKS_OF_STEPS.fullmatch(action_name)
            known = found is not None and self._is_overridden(action_name, found.group(1))
            self._is_timed[action_name] = known
        return known

    def _is_overridden(self, action_name: str, hook: str) -> bool:
        module, trainer = self._lightning_module, self._trainer()
        owners = [
            callback
            for callback in getattr(trainer, "callbacks", ())
            if action_name == f"[Callback]{callback.state_key}.{hook}"
        ]
        if action_name.startswith("[LightningModule]"):
            owners = [module]
        return any(_overrides(owner, hook) for owner in owners)

    def _enter(self, action_name: str, context: Any) -> None:
        context.__enter__()
        self._open[action_name] = context
