"""The option `auto_phases`: detects phases from what the loop does with torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from stepscope.capture.steps.modes import ModeWatch
from stepscope.capture.steps.phase_timer import PhaseTimer
from stepscope.capture.steps.phases import PhaseWatch, records_gradients
from stepscope.run.step_record import EVALUATION


class AutoPhases:
    """Detects phases for a profiler whose loop ends the steps itself.

    Only the thread that created it counts.

    Args:
        running: Returns what times the phases, or None while nothing is recorded.

    Attributes:
        watch: The hooks in torch.
    """

    def __init__(self, running: Callable[[], PhaseTimer | None]) -> None:
        self._running = running
        self._owner = (os.getpid(), threading.get_ident())
        self._fetches = 0
        self._has_loader = False
        self._has_batch = False
        self._has_unused_batch = False
        self._evaluated: int | None = None
        self.watch = PhaseWatch(self, running, self.data_ended, self._is_forward)
        self._modes = ModeWatch(self.listens, self.mode_changed)

    def install(self) -> None:
        """Hook into torch, until `remove`."""
        self.watch.install()
        self._modes.install()

    def remove(self) -> None:
        """Restore torch."""
        self._modes.remove()
        self.watch.remove()

    def listens(self) -> bool:
        """Whether this is the training thread, in its process."""
        return self._owner == (os.getpid(), threading.get_ident())

    def begin_fetch(self) -> bool:
        """Start the loop's own wait for a batch; a DataLoader's wait inside is part of it.

        Returns:
            Whether `end_fetch` must follow.
        """
        if not self.listens():
            return False
        self.watch.leave()
        self._fetches += 1
        self._has_loader = True
        return True

    def end_fetch(self) -> None:
        """End the loop's wait, whether or not a batch arrived."""
        self._fetches -= 1

    def batch_came(self) -> None:
        """Begin the forward phase: the batch has arrived."""
        timer = self._running() if self.listens() else None
        if timer is not None:
            self._has_unused_batch = True
            self.watch.batch_came(timer)

    # -- what the watch asks and tells ----------------------------------------------------------

    def before_fetch(self, iterator: Any) -> PhaseTimer | None:  # noqa: ARG002 - any counts
        """Decide whether to time a wait for a DataLoader's batch.

        Without gradients, the batch is for an evaluation, which is a phase as a whole: the training
        waits for none of its batches.
        """
        timer = None if self._fetches else self._running()
        if timer is None or records_gradients():
            return timer
        if not self.watch.is_in(EVALUATION):
            self._has_batch = self._has_unused_batch
            self.watch.enter(timer, EVALUATION)
        return None

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

    def _end_evaluation(self) -> None:
        """Go on with the forward phase that the evaluation interrupted, if it did."""
        if not self.watch.is_in(EVALUATION):
            return
        self.watch.leave()
        timer = self._running()
        if timer is not None and self._has_batch:
            self.watch.batch_came(timer)

    def _is_forward(self) -> bool:
        """Whether a module that the loop calls now is part of the forward phase.

        Without gradients, a model that was set to evaluation is evaluated.
        """
        if records_gradients():
            return True
        timer = self._running()
        if timer is not None and self._evaluated is not None and not self.watch.is_in(EVALUATION):
            self.watch.enter(timer, EVALUATION)
        return not self.watch.is_in(EVALUATION)

    def after_fetch(self, profiler: Any, batch: Any) -> None:  # noqa: ARG002 - any counts
        """Begin the forward phase."""
        self._has_loader = self._has_unused_batch = True
        self.watch.batch_came(profiler)

    def before_workers(self, data: Any, *, is_start: bool) -> PhaseTimer | None:  # noqa: ARG002
        """Decide whether to time a start or an end of workers: that of an evaluation's is not."""
        if self._fetches or self.watch.is_in(EVALUATION) or not records_gradients():
            return None
        return self._running()

    def before_backward(self) -> PhaseTimer | None:
        """Decide whether to time a backward pass."""
        self._has_unused_batch = False
        self._evaluated = None  # a model that learns like that is part of the training
        return self._running()

    def before_optimizer(self) -> PhaseTimer | None:
        """Decide whether to time an optimizer step."""
        return self._running()

    def after_optimizer(self, optimizer: Any) -> None:
        """Do nothing: steps end where the loop says so."""
