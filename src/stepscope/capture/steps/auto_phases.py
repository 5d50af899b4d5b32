"""The option `auto_phases`: phases and evaluations in a loop that ends its steps itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.capture.steps.detector import Detector, Policy
from stepscope.run.step_record import EVALUATION

if TYPE_CHECKING:
    from stepscope.capture.steps.core import StepCore


class AutoPhases(Policy):
    """Tells evaluations from the training; a step ends where the loop says so.

    An evaluation is what is done without gradients with batches, or with a model that was set to
    evaluation. It is a phase as a whole: the training waits for none of its batches.
    """

    def __init__(self, core: StepCore) -> None:
        import torch

        self._records_gradients = torch.is_grad_enabled
        self.detector = Detector(
            self, finds_forward=True, times_calls=True, finds_modes=True, finds_evaluations=True
        )
        self.detector.attach(core)
        self._has_loader = False
        self._has_batch = False
        self._has_unused_batch = False
        self._evaluated: int | None = None

    def wants_batch(self, iterator: Any) -> bool:  # noqa: ARG002 - any counts
        """A batch without gradients is for an evaluation."""
        detector = self.detector
        if self._records_gradients():
            return True
        if not detector.is_in(EVALUATION):
            self._has_batch = self._has_unused_batch
            detector.enter(EVALUATION)
        return False

    def batch_came(self, iterator: Any, batch: Any) -> None:  # noqa: ARG002 - any counts
        """Begin the forward phase."""
        self._has_loader = self._has_unused_batch = True
        if iterator is not None:
            self.detector.begin_forward()

    def wants_workers(self, data: Any, *, is_start: bool) -> bool:  # noqa: ARG002
        """Starts and ends of workers are waits, except in an evaluation."""
        detector = self.detector
        is_training = self._records_gradients() and not detector.is_in(EVALUATION)
        return is_training and not detector.own_fetches

    def backward_begins(self) -> None:
        """Note that the batch is used: a model that learns like that is part of the training."""
        self._has_unused_batch = False
        self._evaluated = None

    def mode_changed(self, module: Any, is_training: bool) -> None:
        """End an evaluation: the model that was set to evaluation is set back."""
        if not is_training:
            self._evaluated = id(module)
        elif self._evaluated == id(module):
            self._evaluated = None
            self._end_evaluation()

    def data_ended(self) -> None:
        """End an evaluation with its data, if nothing else will tell before the next forward.

        That is where the training has its batch already, or gets none from a DataLoader, and no
        model is to be set back to training.
        """
        if self._evaluated is None and (self._has_batch or not self._has_loader):
            self._end_evaluation()

    def is_forward_without_gradients(self) -> bool:
        """A model that was set to evaluation is evaluated."""
        detector, core = self.detector, self.detector.core
        is_evaluation = detector.is_in(EVALUATION)
        if self._evaluated is not None and not is_evaluation and core is not None:
            if not detector.is_in_backward and not core.phases_so_far().has_own:
                detector.enter(EVALUATION)
            return False
        return not is_evaluation

    def _end_evaluation(self) -> None:
        """Go on with the forward phase that the evaluation interrupted, if it did."""
        if not self.detector.is_in(EVALUATION):
            return
        self.detector.leave()
        if self._has_batch:
            self.detector.begin_forward()
