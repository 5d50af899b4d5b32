"""Shows on a terminal that a long computation goes on, and what it is doing."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

COMPILING = "Compiling, once per installation"
"""What a terminal shows while functions are compiled."""

_PATIENCE_SECONDS = 1.0
_INTERVAL_SECONDS = 0.5


@contextmanager
def working(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Shows what is being done and for how long, in one line that is gone afterwards.

    Nothing is shown for what ends within a second, or if the stream is no terminal. Within another
    `working`, this is a stage of it: the line names the innermost. Nothing else may be written to
    the terminal meanwhile.

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
    line = WorkingLine(shown_on)
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
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stages: list[tuple[str, float]] = []
        self._told: str | None = None
        self._done = threading.Event()

    def enter(self, what: str) -> None:
        """Begin a stage within the present one."""
        self._stages.append((what, time.monotonic()))

    def leave(self) -> None:
        """End the present stage."""
        self._stages.pop()

    def tell(self, text: str | None) -> None:
        """Show a text instead of the stage, such as how far it is; None: the stage again."""
        self._told = text

    def end(self) -> None:
        """Remove the line."""
        self._done.set()

    def show(self) -> None:
        """Show the line again and again, until it ends. This is for a thread of its own."""
        wait = _PATIENCE_SECONDS
        is_visible = False
        while not self._done.wait(wait):
            told = self._told
            what, began = self._stages[-1]
            write_line(self._stream, told or f"{what} · {time.monotonic() - began:.0f} s")
            is_visible, wait = True, _INTERVAL_SECONDS
        if is_visible:
            write_line(self._stream, "")


_CURRENT: ContextVar[WorkingLine | None] = ContextVar("working", default=None)
_TERMINAL = threading.Lock()


def current_line() -> WorkingLine | None:
    """The line that shows what the caller is part of; None without one."""
    return _CURRENT.get()


def is_watched(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal."""
    return stream is not None and stream.isatty()


def write_line(stream: TextIO, text: str) -> None:
    """Replace the line on a terminal by a text that fits it, without control characters.

    Of a text that is too long, a part in the middle is left out: file names and numbers end it.
    """
    clean = "".join(letter if letter.isprintable() else "�" for letter in text)
    width = _width_of(stream)
    if width and len(clean) >= width:
        beginning = clean[: width // 3]
        clean = f"{beginning}…{clean[len(beginning) + len(clean) - width + 2 :]}"
    stream.write(f"\r\x1b[K{clean}")
    stream.flush()


def _width_of(stream: TextIO) -> int:
    """Columns of a terminal; 0 if it does not say how many it has."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):  # not every terminal has a file number
        return 0
