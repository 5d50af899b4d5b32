"""Which thread a window belongs to: torch records one thread, and only that one can end it."""

from __future__ import annotations

import threading

from stepscope.capture.windows.kinds import Window, discard

_ELSEWHERE = "it was opened in another thread, and torch records a thread: call step() and stop() "
IN_THE_SAME = _ELSEWHERE + "in the same one"
IN_ONE_THAT_GOES_ON = _ELSEWHERE + "in one that goes on"


class Opener:
    """The thread that opened the window, and what it has to end that another one gave up.

    Attributes:
        has_strange_steps: Whether steps of the window were ended in another thread.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._leftover: Window | None = None
        self.has_strange_steps = False

    def opens(self) -> None:
        """The current thread opens a window."""
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
        """Whether a window that was given up goes on in its thread."""
        return self._leftover is not None

    def leave(self, window: Window) -> None:
        """Give a window up. Torch goes on recording until the window's own thread comes by."""
        self._leftover = window
        self.tidy()

    def tidy(self) -> None:
        """End what was given up, if this is the thread that opened it, or that thread has ended."""
        window, thread = self._leftover, self._thread
        if window is None or thread is None:
            return
        is_here = thread is threading.current_thread()
        if is_here or not thread.is_alive():
            self._leftover = None
            discard(window, has_thread_ended=not is_here)
