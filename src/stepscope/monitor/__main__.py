"""`python -m stepscope.monitor JOB`: record metrics of the process that started this one.

Orders are lines on standard input. Its end, or the end of the parent, ends this process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

from stepscope.errors import StepscopeError
from stepscope.monitor.processes import is_running
from stepscope.monitor.recorder import GONE, STOP, Recorder, RecordingJob
from stepscope.run.helper_processes import lower_priority

_LOOK_S = 1.0


class Orders:
    """Waits for a line on standard input, the end of the parent (or its parent), or SIGTERM."""

    def __init__(self, watched: int) -> None:
        self._watched = watched
        self._ahead = b""
        self._is_open = True
        self._has_term = False
        # Wakes as soon as the parent ends, even by SIGKILL. Standard input is not enough, because
        # the training's own children hold its other end as well.
        self._watch: int | None = None
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._watch = os.pidfd_open(watched)
        signal.signal(signal.SIGTERM, self._on_term)

    def wait(self, seconds: float) -> str | None:
        """The next order within this many seconds."""
        deadline_s = time.monotonic() + seconds
        while True:
            if self._has_term:
                return STOP
            if not is_running(self._watched):
                return GONE
            line, newline, rest = self._ahead.partition(b"\n")
            if newline:
                self._ahead = rest
                return line.decode("utf-8", "replace")
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return None
            self._listen(min(left_s, _LOOK_S) if self._watch is None else left_s)

    def _listen(self, seconds: float) -> None:
        files = [sys.stdin.fileno()] if self._is_open else []
        if self._watch is not None:
            files.append(self._watch)
        ready, _, _ = select.select(files, [], [], seconds)
        if self._is_open and sys.stdin.fileno() in ready:
            data = os.read(sys.stdin.fileno(), 4096)
            self._is_open = bool(data)
            # A parent that ends normally sends an order first.
            self._ahead += data or f"\n{GONE}\n".encode()

    def _on_term(self, *_: object) -> None:
        self._has_term = True


def main() -> int:
    """Record what the only argument describes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = RecordingJob.decode(sys.argv[1])
    with contextlib.suppress(OSError):
        lower_priority()
    orders = Orders(job.watched.pid)
    try:
        recorder = Recorder(job)
    except (OSError, StepscopeError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - the parent reads it
        return 1
    # Nobody reads the pipe from now on, so a driver that prints must not fill it and block.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    recorder.run(orders.wait)
    return 0


if __name__ == "__main__":
    sys.exit(main())
