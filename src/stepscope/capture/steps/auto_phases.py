"""The option `auto_phases`: a capture that tells its phases from what the loop does with torch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from stepscope.capture.steps.phases import PhaseTimer, PhaseWatch
from stepscope.run.step_record import FORWARD


class AutoPhases:
    """Listens to torch for a profiler whose loop ends the steps itself.

    Only the thread that made it counts.

    Args:
        running: Gives what times the phases, or None while nothing is recorded.

    Attributes:
        watch: What is put into torch.
    """

    def __init__(self, running: Callable[[], PhaseTimer | None]) -> None:
        self._running = running
        self._owner = (os.getpid(), threading.get_ident())
        self._fetches = 0
        self.watch = PhaseWatch(self, running)

    def listens(self) -> bool:
        """Whether this is the training's thread, in its process."""
        return self._owner == (os.getpid(), threading.get_ident())

    def begin_fetch(self) -> bool:
        """The loop itself waits for a batch from now on, of which a DataLoader's wait is a part.

        Returns:
            Whether `end_fetch` must follow.
        """
        if not self.listens():
            return False
        self.watch.leave()
        self._fetches += 1
        return True

    def end_fetch(self) -> None:
        """The loop's wait is over, whether the batch came or not."""
        self._fetches -= 1

    def batch_came(self) -> None:
        """The batch that the loop waited for is there."""
        timer = self._running() if self.listens() else None
        if timer is not None:
            self.watch.enter(timer, FORWARD)

    # -- what the watch asks and tells ----------------------------------------------------------

    def before_fetch(self, iterator: Any) -> PhaseTimer | None:  # noqa: ARG002 - any counts
        """An iterator over a DataLoader is asked for a batch."""
        return None if self._fetches else self._running()

    def after_fetch(self, profiler: Any, batch: Any) -> None:  # noqa: ARG002 - any counts
        """It has given one."""
        self.watch.enter(profiler, FORWARD)

    def before_backward(self) -> PhaseTimer | None:
        """A backward pass begins."""
        return self._running()

    def before_optimizer(self) -> PhaseTimer | None:
        """An optimizer's step begins."""
        return self._running()

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer's step has ended; steps end where the loop says so."""
