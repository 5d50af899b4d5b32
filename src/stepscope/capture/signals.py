"""SIGTERM: what was recorded is saved before the process ends or goes on."""

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

    def remove(self) -> None:
        """Restore the previous handler, unless other code has replaced ours."""
        if threading.current_thread() is not threading.main_thread():
            return
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
