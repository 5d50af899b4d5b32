"""An interrupt that arrives twice ends a script once.

A scheduler, or `kill` with the number of a process group, interrupts `stepscope run` and the
training alike. Without a terminal `stepscope run` cannot know that, and passes the interrupt on:
the training gets it again while it closes its recording.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from types import FrameType

SAME_S = 2.0
"""An interrupt so soon after the end of the script is the one that ended it."""


@contextlib.contextmanager
def repeated_interrupts_ignored() -> Iterator[None]:
    """Ignore interrupts that come at once; one that comes later still ends what is being done.

    A script that handles interrupts itself keeps its handler. Only the main thread may set
    handlers: in any other, nothing changes.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    began = time.monotonic()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if time.monotonic() - began > SAME_S:
            signal.default_int_handler(number, frame)

    try:
        signal.signal(signal.SIGINT, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
