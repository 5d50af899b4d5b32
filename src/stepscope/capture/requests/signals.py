"""Signals: the termination that a scheduler announces, and windows on demand."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

log = logging.getLogger("stepscope")


class TerminationSignalError(BaseException):
    """Represents SIGTERM where an exception says why the loop ended. It is never raised."""


class SignalWatch:
    """Handles two signals while a capture runs, and restores their handlers afterwards.

    SIGTERM: what was recorded is saved first; then the usual effect follows. A signal that the
    training ignores stays ignored. SIGUSR2 (which normally ends a process) requests a window,
    unless the training uses it itself.

    Args:
        terminate: Called on SIGTERM with whether the process will end now. Returns whether it could
            do its work; if not, `resume` must be called soon.
        trigger: Called on SIGUSR2; None leaves that signal alone.
    """

    def __init__(
        self, terminate: Callable[[bool], bool] | None, trigger: Callable[[], None] | None
    ) -> None:
        self._terminate = terminate
        self._trigger = trigger
        self._process_id = os.getpid()
        self._previous: dict[int, Any] = {}
        self._is_postponed = False

    def install(self) -> None:
        """Install the handlers. Does nothing outside the main thread, where Python allows none."""
        if threading.current_thread() is not threading.main_thread():
            log.debug("stepscope: not in the main thread, so signals are left alone")
            return
        if self._terminate is not None:
            current = signal.getsignal(signal.SIGTERM)
            # None means that it was set outside Python, and we could not call it in turn.
            if current is signal.SIG_DFL or callable(current):
                self._set(signal.SIGTERM, self._on_terminate)
        number = getattr(signal, "SIGUSR2", None)
        if (
            self._trigger is not None
            and number is not None
            and signal.getsignal(number) is signal.SIG_DFL
        ):
            self._set(number, self._on_trigger)

    def remove(self) -> None:
        """Restore the previous handlers, unless other code has replaced ours."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number, previous in self._previous.items():
            current = signal.getsignal(number)
            if current in (self._on_terminate, self._on_trigger):
                with contextlib.suppress(OSError, ValueError, TypeError):
                    signal.signal(number, previous)
        self._previous = {}

    def resume(self) -> None:
        """Handle a SIGTERM that was postponed because it came at a bad moment."""
        if not self._is_postponed or os.getpid() != self._process_id:
            return
        is_fatal = not callable(self._previous.get(signal.SIGTERM, signal.SIG_DFL))
        if is_fatal and threading.current_thread() is not threading.main_thread():
            # Only the main thread may end the process as the signal would: send it again.
            os.kill(os.getpid(), signal.SIGTERM)
            return
        self._is_postponed = False
        if self._terminate is not None and self._terminate(is_fatal) and is_fatal:
            end_by(signal.SIGTERM)

    def _set(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        self._previous[number] = signal.signal(number, handler)

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous.get(number, signal.SIG_DFL)
        is_fatal = not callable(previous)
        is_done = True
        if os.getpid() == self._process_id and self._terminate is not None:
            is_done = self._terminate(is_fatal)
            self._is_postponed = not is_done
        if not is_fatal:
            previous(number, frame)
        elif is_done:
            end_by(number)

    def _on_trigger(self, _number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._process_id and self._trigger is not None:
            self._trigger()


def end_by(number: int) -> None:
    """End this process by a signal, so that its parent sees the usual status."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
