"""A callback for the Trainer of transformers, and for the trainers of TRL that are built on it.

    from stepscope.adapters.transformers import StepscopeCallback

    trainer = Trainer(..., callbacks=[StepscopeCallback(output_dir="profiles")])

A step is an optimizer step, as the Trainer counts them, with all its micro-batches; with
`step_unit="micro-batch"` each of those is one. It reaches from the end of the step before to its
own end. Evaluations and checkpoints are no part of steps: the step record has lines of their own
for them.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from transformers import TrainerCallback

from stepscope.adapters.callbacks.training import TrainingDoor, identity_of
from stepscope.run.step_record import CHECKPOINT, EVALUATION

_LOGGING = "logging"


class StepscopeCallback(TrainingDoor, TrainerCallback):
    """Records each training of the Trainer that it is given to, as a run of its own.

    An exception that the script catches is not told to callbacks: around `trainer.train()` say
    `with callback:`, and the run ends with it. One that ends the script is seen without that.
    Its arguments are those of `stepscope.Profiler`, or a `Profiler` that was made but not started.
    """

    def __enter__(self) -> StepscopeCallback:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recorder.finish(error)

    # -- what the Trainer calls -----------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """The training begins."""
        identity = identity_of(args.process_index, args.local_process_index, args.world_size)
        loader = more.get("train_dataloader")
        data = getattr(loader, "dataset", None)
        self._recorder.begin(identity, data=data, keeps_work=_uses_all(loader, data, state))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """An epoch begins, and nothing of it has been fetched."""
        self._recorder.forget_batches()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """The batches of an optimizer step are there."""
        self._recorder.forward()
        self._recorder.use_batch()

    def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:  # noqa: ARG002
        """A micro-batch has ended that is not the last of its optimizer step."""
        if self._recorder.counts_micro_batches and self._recorder.step_ended():
            control.should_training_stop = True
        self._recorder.forward()
        self._recorder.use_batch()
        return control

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """The gradients have been clipped."""
        self._recorder.leave_phase()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:  # noqa: ARG002
        """An optimizer step has ended; what the Trainer does besides comes next."""
        if self._recorder.step_ended():
            control.should_training_stop = True
        self._expect(control)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """An epoch has ended, which can be another moment to do something besides."""
        self._expect(control)

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """Logged: also in the middle of an evaluation."""
        self._recorder.leave_phase()
        if not self._recorder.aside and not self._recorder.is_in_step:
            self._step_aside(control)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """A batch of an evaluation, which somebody else than the Trainer may have asked for."""
        self._recorder.step_aside(EVALUATION)

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """An evaluation has ended."""
        self._end_aside(EVALUATION)
        if control.should_save and not self._recorder.is_in_step:
            self._recorder.step_aside(CHECKPOINT)

    def on_predict(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """A prediction has ended."""
        self._end_aside(EVALUATION)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """A checkpoint was saved."""
        self._end_aside(CHECKPOINT)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:  # noqa: ARG002
        """The training has ended."""
        self._recorder.finish()

    # -- besides the steps ----------------------------------------------------------------------

    def _expect(self, control: Any) -> None:
        """The Trainer logs, evaluates and saves, in this order, what `control` asks for."""
        if control.should_log:
            self._recorder.phase(_LOGGING)
        else:
            self._step_aside(control)

    def _step_aside(self, control: Any) -> None:
        if control.should_evaluate:
            self._recorder.step_aside(EVALUATION)
        elif control.should_save:
            self._recorder.step_aside(CHECKPOINT)

    def _end_aside(self, kind: str) -> None:
        if self._recorder.aside == kind:
            self._recorder.come_back()
        else:
            # It was not announced: its beginning is not known, only that it is over.
            self._recorder.restart_step()


def _uses_all(loader: Any, data: Any, state: Any) -> bool:
    """Whether this rank uses each batch that it fetches, so that it tells how much is in it."""
    if type(loader).__name__ == "DataLoaderDispatcher":
        return False  # the first rank fetches for all, and hands each its part
    is_resumed = getattr(state, "global_step", 0) > 0
    return not is_resumed or hasattr(data, "__getitem__")  # others are fetched to be skipped
