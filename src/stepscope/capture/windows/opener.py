"""The thread that owns a window: torch records per thread, and only that thread can stop it."""

from __future__ import annotations

import threading

from stepscope.capture.windows.kinds import Window, discard

_ELSEWHERE = "it was opened in another thread, and torch records per thread: "
IN_THE_SAME = _ELSEWHERE + "call step() and stop() in the same one"
IN_ONE_THAT_GOES_ON = _ELSEWHERE + "call step() and stop() in one that keeps running"


class Opener:
    """The thread that opened the window, and a window that another thread gave up.

    Attributes:
        has_strange_steps: Whether steps of the window were ended in another thread.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._leftover: Window | None = None
        self.has_strange_steps = False

    def opens(self) -> None:
        """Note that the current thread opens a window."""
        self._thread, self.has_strange_steps = threading.current_thread(), False

    def is_elsewhere(self, window: Window | None) -> bool:
        """Whether a window is being recorded that only another thread can end."""
        return (
            window is not None
            and window.is_recording
            and window.is_of_one_thread
            and self._thread is not threading.current_thread()
        )

    @property
    def has_ended(self) -> bool:
        """Whether the thread has ended, or there was none."""
        return self._thread is None or not self._thread.is_alive()

    @property
    def has_leftover(self) -> bool:
        """Whether a window that was given up is still recording in its thread."""
        return self._leftover is not None

    def leave(self, window: Window) -> None:
        """Give a window up. Torch keeps recording until the owning thread calls `tidy`."""
        self._leftover = window
        self.tidy()

    def tidy(self) -> None:
        """End the window that was given up, if this thread owns it or the owner has ended."""
        window, thread = self._leftover, self._thread
        if window is None or thread is None:
            return
        is_here = thread is threading.current_thread()
        if is_here or not thread.is_alive():
            self._leftover = None
            discard(window, has_thread_ended=not is_here)
