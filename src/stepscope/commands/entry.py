"""The installed command: `main`, and an end of the process that does not take it apart.

Before it exits, Python frees its objects one by one. After a report of a large trace, that takes
two tenths of a second for nothing: the system frees the memory of a process in one go.
"""

from __future__ import annotations

import atexit
import os
import sys

_INTERRUPTED = 130
_VIEWER = "stepscope.viewer.app"
_END_AT_ONCE = {"stepscope.trace.arrays.memory_reuse", _VIEWER}
"""Imported by verbs that hold large tables. All others end as usual: a training may run in them."""


class _Ending:
    """Ends the process when nothing is left to do but to free its memory."""

    def __init__(self) -> None:
        self.code: int | None = None  # known once the command has run

    def end(self) -> None:
        """End at once, if all that was written arrives; otherwise leave it to Python to say why."""
        if self.code is None or not _END_AT_ONCE & sys.modules.keys():
            return
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except (OSError, ValueError):
            return
        os._exit(self.code)


def run() -> int:
    """Run the command line of this process, and return its exit code, as `main` does.

    Only for a caller that then exits with this code.
    """
    ending = _Ending()
    # Python calls these functions from the last to the first, after it has waited for threads. So
    # this one comes last, unless there are others by now; those would never be called.
    if atexit._ncallbacks() == 0:
        atexit.register(ending.end)
    try:
        # Ctrl-C can come while it is imported.
        from stepscope.commands.main import main
    except KeyboardInterrupt:
        return _INTERRUPTED
    ending.code = main()
    if _VIEWER in sys.modules:
        # Threads may still work on requests, which nobody waits for but Python.
        atexit._run_exitfuncs()
        ending.end()
    return ending.code
