"""A callback for the Trainer of transformers, and for the trainers of TRL that are built on it.

    from stepscope.adapters.transformers import StepscopeCallback

    trainer = Trainer(..., callbacks=[StepscopeCallback(output_dir="profiles")])

A step is an optimizer step as the Trainer counts them, with all its micro-batches; with
`step_unit="micro-batch"`, each micro-batch is a step. It lasts from the end of the previous step to
its own end. Evaluations and checkpoints are not part of steps; they have separate lines in the step
record.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from stepscope.adapters.callbacks.training import CallbackBase, identity_of
from stepscope.adapters.profiler import Profiler, check_names
from stepscope.capture.options.config import CaptureConfig
from stepscope.errors import UsageError
from stepscope.run.step_record import CHECKPOINT, EVALUATION

_LOGGING = "logging"
_GUIDE_NAMES = {
    "wait_steps": "wait",
    "warmup_steps": "warmup",
    "active_steps": "active",
    "repeat_times": "repeat",
    "log_steps": "memory_log_steps",
}
"""Names of options in profiling guides for the Trainer, and ours."""


class StepscopeCallback(CallbackBase, TrainerCallback):
    """Records each training of its Trainer as a separate run.

    Callbacks are not told about exceptions that the script catches: use `with callback:` around
    `trainer.train()` so that the run ends with the exception. One that ends the script is noticed
    without that. Its arguments are those of `stepscope.Profiler`, or a `Profiler` that was not
    started. The names of profiling guides for the Trainer are understood as well: `wait_steps`,
    `warmup_steps`, `active_steps`, `repeat_times` and `log_steps`.

    Raises:
        UsageError: An option is unknown, or given under two names.
    """

    def __init__(self, profiler: Profiler | CaptureConfig | None = None, **options: Any) -> None:
        check_names(options, _GUIDE_NAMES)
        for theirs, ours in _GUIDE_NAMES.items():
            if theirs in options and ours in options:
                raise UsageError(f"{theirs} and {ours} are the same option: give one of them")
        named = {_GUIDE_NAMES.get(name, name): value for name, value in options.items()}
        super().__init__(profiler, **named)

    def __enter__(self) -> StepscopeCallback:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._recorder.finish(error)

    # -- what the Trainer calls -----------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Start recording."""
        identity = identity_of(args.process_index, args.local_process_index, args.world_size)
        loader = more.get("train_dataloader")
        data = getattr(loader, "dataset", None)
        self._recorder.begin(
            identity,
            steps_before=state.global_step,
            data=data,
            keeps_work=_uses_all(loader, data, state),
        )

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Forget batches that were fetched in an earlier epoch."""
        self._recorder.forget_batches()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Begin the forward phase: the batches of an optimizer step have arrived."""
        self._recorder.forward()

    def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:  # noqa: ARG002
        """Handle the end of a micro-batch that is not the last of its optimizer step."""
        if self._recorder.counts_micro_batches and self._recorder.step_ended():
            control.should_training_stop = True
        self._recorder.forward()
        return control

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Leave the phase: the gradients have been clipped."""
        self._recorder.leave_phase()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:  # noqa: ARG002
        """End the step; logging, evaluation and saving come next."""
        if self._recorder.step_ended():
            control.should_training_stop = True
        self._expect(control)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Prepare for logging, evaluation and saving at the end of an epoch."""
        self._expect(control)

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Leave the logging phase. Logging may also happen in the middle of an evaluation."""
        self._recorder.log_loss((more.get("logs") or {}).get("loss"))
        self._recorder.leave_phase()
        if not self._recorder.excluded and not self._recorder.is_in_step:
            self._step_aside(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Exclude an evaluation, which the Trainer may not have requested itself."""
        self._recorder.suspend_steps(EVALUATION)

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Resume the steps after an evaluation."""
        self._end_aside(EVALUATION)
        if control.should_save and not self._recorder.is_in_step:
            self._recorder.suspend_steps(CHECKPOINT)

    def on_predict(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Resume the steps after a prediction."""
        self._end_aside(EVALUATION)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Resume the steps after a checkpoint."""
        self._end_aside(CHECKPOINT)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """End the recording."""
        self._recorder.finish()

    # -- besides the steps ----------------------------------------------------------------------

    def _expect(self, control: Any) -> None:
        """Prepare for what `control` requests: to log, evaluate and save, in this order."""
        if control.should_log:
            self._recorder.phase(_LOGGING)
        else:
            self._step_aside(control)

    def _step_aside(self, control: Any) -> None:
        if control.should_evaluate:
            self._recorder.suspend_steps(EVALUATION)
        elif control.should_save:
            self._recorder.suspend_steps(CHECKPOINT)

    def _end_aside(self, kind: str) -> None:
        if self._recorder.excluded == kind:
            self._recorder.resume_steps()
        else:
            # It was not announced, so its start is unknown; only its end is known.
            self._recorder.restart_step()


def _uses_all(loader: Any, data: Any, state: Any) -> bool:
    """Whether this rank uses every batch that it fetches, so that its work can be counted."""
    if type(loader).__name__ == "DataLoaderDispatcher":
        return False  # the first rank fetches for all and sends each its part
    is_resumed = getattr(state, "global_step", 0) > 0
    return not is_resumed or hasattr(data, "__getitem__")  # others are fetched to be skipped
