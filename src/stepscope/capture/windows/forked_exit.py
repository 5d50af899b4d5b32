"""Lets a fork of a process that used torch's profiler exit.

Once torch's profiler has recorded, a destructor that runs when the process exits waits for a thread
of the profiler. A fork does not have that thread, and would wait forever, and whoever waits for the
fork with it. So forks skip the destructors: Python has finished by then, and the exit code is kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os


@functools.cache
def let_forks_exit() -> None:
    """From now on, forks of this process leave right after Python has finished."""
    # Not on every platform; without fork, there is nothing to do.
    with contextlib.suppress(AttributeError):
        os.register_at_fork(after_in_child=_skip_destructors)


def _skip_destructors() -> None:
    # Of the C library's exit handlers, the last one added runs first. Only `on_exit` (glibc) gives
    # its handlers the exit code; elsewhere the fork exits as before.
    with contextlib.suppress(Exception):
        library = ctypes.CDLL(None)
        library.on_exit(library._exit, None)
        library.on_exit(library.fcloseall, None)  # what C code has printed is not lost
