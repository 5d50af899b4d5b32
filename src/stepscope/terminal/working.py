"""Shows on a terminal that a long computation goes on, and what it is doing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

from stepscope.terminal.terminal_line import TerminalLine, is_watched

COMPILING = "Compiling, once per installation"
"""What a terminal shows while functions are compiled."""

_PATIENCE_SECONDS = 1.0
_INTERVAL_SECONDS = 0.5


@contextmanager
def working(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Shows what is being done and for how long, in one line that is gone afterwards.

    Nothing is shown for what ends within a second, or if the stream is no terminal. The second of
    a command's first work began with the command: starting and importing belong to the wait. Within
    another `working`, this is a stage of it: the line names the innermost. Nothing else may be
    written to the terminal meanwhile.

    Args:
        what: What is being done, as "Answering settings".
        stream: Where to show it; None: on standard error.
    """
    if current_line() is not None:
        with stage(what):
            yield
        return
    shown_on = sys.stderr if stream is None else stream
    # A terminal has one such line: threads of a server do not draw over one another.
    if not is_watched(shown_on) or not _TERMINAL.acquire(blocking=False):
        yield
        return
    line = WorkingLine(shown_on, _COMMAND_BEGAN.get())
    _COMMAND_BEGAN.set(None)
    line.enter(what)
    token = _CURRENT.set(line)
    shower = threading.Thread(target=line.show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        _CURRENT.reset(token)
        line.end()
        shower.join()
        _TERMINAL.release()


@contextmanager
def stage(what: str) -> Iterator[None]:
    """Names a part of what is being done, if that is shown."""
    line = current_line()
    if line is None:
        yield
        return
    line.enter(what)
    try:
        yield
    finally:
        line.leave()


class WorkingLine:
    """The line on a terminal, and the stages that it can name.

    Args:
        waiting_since: When the person began to wait, as of `time.monotonic`; None: now.
    """

    def __init__(self, stream: TextIO, waiting_since: float | None = None) -> None:
        self._line = TerminalLine(stream)
        self._since = time.monotonic() if waiting_since is None else waiting_since
        self._stages: list[tuple[str, float]] = []
        self._text: str | None = None
        self._done = threading.Event()

    def enter(self, what: str) -> None:
        """Begin a stage within the present one."""
        self._stages.append((what, time.monotonic()))

    def leave(self) -> None:
        """End the present stage."""
        self._stages.pop()

    def show_text(self, text: str | None) -> None:
        """Show a text instead of the stage, such as how far it is; None: the stage again."""
        self._text = text

    def end(self) -> None:
        """Remove the line."""
        self._done.set()

    def show(self) -> None:
        """Show the line again and again, until it ends. This is for a thread of its own."""
        wait = max(0.0, self._since + _PATIENCE_SECONDS - time.monotonic())
        while not self._done.wait(wait):
            text = self._text
            what, began = self._stages[-1]
            self._line.show(text or f"{what} · {time.monotonic() - began:.0f} s")
            wait = _INTERVAL_SECONDS
        self._line.clear()


_CURRENT: ContextVar[WorkingLine | None] = ContextVar("working", default=None)
_COMMAND_BEGAN: ContextVar[float | None] = ContextVar("command_began", default=None)
_TERMINAL = threading.Lock()


def command_begins() -> None:
    """Remember when a command began: a person waits from then on, not from its first work."""
    _COMMAND_BEGAN.set(time.monotonic())


def current_line() -> WorkingLine | None:
    """The line that shows what the caller is part of; None without one."""
    return _CURRENT.get()
