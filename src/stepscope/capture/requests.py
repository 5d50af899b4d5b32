"""Everything that may request a window outside the schedule, for one rank; and SIGTERM."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from stepscope.capture.options.config import CaptureConfig
from stepscope.capture.ranks import RankIdentity, parse_ranks
from stepscope.capture.record.home import Clock
from stepscope.capture.record.journal import Journal
from stepscope.capture.triggers import SlowStepWatch, TriggerDesk
from stepscope.capture.windows.planner import WindowPlanner
from stepscope.run.step_record import TRAIN, StepRecord
from stepscope.run.triggers import Trigger

if TYPE_CHECKING:
    from stepscope.capture.clock_sync import ClockRounds
    from stepscope.capture.shared_store import SharedStore

log = logging.getLogger("stepscope")


class RequestSources:
    """Passes requests from files, code and slow steps to the planner."""

    def __init__(
        self,
        config: CaptureConfig,
        identity: RankIdentity,
        journal: Journal,
        planner: WindowPlanner,
        clock: Clock,
        step_now: Callable[[], int],
    ) -> None:
        self._config = config
        self._identity = identity
        self._journal = journal
        self._planner = planner
        self._slow: SlowStepWatch | None = None
        if config.slow_step_factor is not None:
            self._slow = SlowStepWatch(config.slow_step_factor, config.slow_step_cooldown)
        self._desk: TriggerDesk | None = None
        if config.triggers:
            self._desk = TriggerDesk(
                journal.layout.root,
                identity,
                self._connect,
                planner.request,
                self._clock_rounds(clock) if identity.world_size > 1 else None,
                active=config.active,
                warmup=max(1, config.warmup),
                room_for=config.schedule.room_for,
                step_now=step_now,
            )

    def _connect(self) -> SharedStore | None:
        from stepscope.capture.shared_store import SharedStore

        return SharedStore.connect(self._journal.layout.root.name, own_connection=True)

    def _clock_rounds(self, clock: Clock) -> ClockRounds:
        from stepscope.capture.clock_sync import ClockRounds

        identity = self._identity
        return ClockRounds(
            identity.rank,
            identity.local_rank,
            identity.world_size,
            lambda: clock.epoch(time.perf_counter_ns()),
            self._journal.note_clock,
        )

    def start(self) -> None:
        """Start listening."""
        if self._desk is not None:
            self._desk.start()

    def close(self) -> None:
        """Stop listening."""
        if self._desk is not None:
            self._desk.close()

    def take(self, record: StepRecord) -> None:
        """Take in a step that ended, and request a window if it was slow.

        Called in the thread that writes steps: nothing of this is at the training's cost.
        """
        if self._desk is not None:
            self._desk.note_step(record.step + 1, record.dur_ns)
        # Steps inside a window are slower because of it, which means nothing.
        is_usual = record.window is None and record.kind == TRAIN
        if self._slow is not None and is_usual and self._slow.is_slow(record.step, record.dur_ns):
            self.ask("slow step")

    def ask(
        self,
        cause: str,
        steps: int = 0,
        ranks: str = "",
        *,
        with_memory: bool = False,
        details: tuple[str, ...] = (),
    ) -> None:
        """Request a window on all ranks."""
        if not self._config.triggers:
            return
        if ranks:
            parse_ranks(ranks)
        steps = steps or self._config.active
        trigger = Trigger(cause, steps, ranks, with_memory, details=details)
        if self._identity.world_size == 1:
            self._planner.request(trigger)
        elif self._desk is not None:
            self._desk.ask(trigger)


class TerminationSignalError(BaseException):
    """Represents SIGTERM where an exception says why the loop ended. It is never raised."""


class SignalWatch:
    """Saves what was recorded on SIGTERM while a capture runs, and restores the handler afterwards.

    The usual effect of the signal follows. A signal that the training ignores stays ignored.

    Args:
        terminate: Called with whether the process will end now. Returns whether it could do its
            work; if not, `resume` must be called soon.
    """

    def __init__(self, terminate: Callable[[bool], bool]) -> None:
        self._terminate = terminate
        self._process_id = os.getpid()
        self._previous: Any = None
        self._is_installed = False
        self._is_postponed = False

    def install(self) -> None:
        """Install the handler. Does nothing outside the main thread, where Python allows none."""
        if threading.current_thread() is not threading.main_thread():
            log.debug("stepscope: not in the main thread, so signals are left alone")
            return
        current = signal.getsignal(signal.SIGTERM)
        # None means that it was set outside Python, and we could not call it in turn.
        if current is signal.SIG_DFL or callable(current):
            self._previous = signal.signal(signal.SIGTERM, self._on_terminate)
            self._is_installed = True

    def remove(self) -> None:
        """Restore the previous handler, unless other code has replaced ours."""
        if threading.current_thread() is not threading.main_thread() or not self._is_installed:
            return
        self._is_installed = False
        if signal.getsignal(signal.SIGTERM) == self._on_terminate:
            with contextlib.suppress(OSError, ValueError, TypeError):
                signal.signal(signal.SIGTERM, self._previous)

    def resume(self) -> None:
        """Handle a SIGTERM that was postponed because it came at a bad moment."""
        if not self._is_postponed or os.getpid() != self._process_id:
            return
        is_fatal = not callable(self._previous)
        if is_fatal and threading.current_thread() is not threading.main_thread():
            # Only the main thread may end the process as the signal would: send it again.
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._is_postponed = False
        if self._terminate(is_fatal) and is_fatal:
            end_by(signal.SIGTERM)

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous
        is_fatal = not callable(previous)
        is_done = True
        if os.getpid() == self._process_id:
            is_done = self._terminate(is_fatal)
            self._is_postponed = not is_done
        if not is_fatal:
            previous(number, frame)
        elif is_done:
            end_by(number)


def end_by(number: int) -> None:
    """End this process by a signal, so that its parent sees the usual status."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
