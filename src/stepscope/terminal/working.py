"""Shows on a terminal that a long computation goes on, what it is doing, and how far it is."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, TextIO

from stepscope.terminal.plain_text import printable

if TYPE_CHECKING:
    from rich.live import Live

COMPILING = "Compiling, once per installation"
"""What a terminal shows while functions are compiled."""

_PATIENCE_SECONDS = 1.0
_INTERVAL_SECONDS = 0.5
_STATUS_INTERVAL_SECONDS = 0.2


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


class StatusLine:
    """One line on stderr about how far something is. Silent unless stderr is a terminal.

    Nothing is shown for work that is done within a second. Within `working`, it is shown in the
    line of that.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        shown_on = sys.stderr if stream is None else stream
        self._line = current_line() if stream is None else None
        self._own = TerminalLine(shown_on)
        self._began = time.monotonic()
        self._shown = self._began + _PATIENCE_SECONDS
        self._visible = False
        self._enabled = is_watched(shown_on)

    def update(self, line: Callable[[float], str] | str) -> None:
        """Shows a line, unless another was shown just now.

        Args:
            line: The line, or a function that returns it for the seconds since the beginning.
        """
        now = time.monotonic()
        if self._enabled and now - self._shown >= _STATUS_INTERVAL_SECONDS:
            self._shown, self._visible = now, True
            text = line if isinstance(line, str) else line(now - self._began)
            if self._line is not None:
                self._line.show_text(text)
            else:
                self._own.show(text)

    def close(self) -> None:
        """Clears the line."""
        if not self._visible:
            return
        if self._line is not None:
            self._line.show_text(None)
        else:
            self._own.clear()


# -- the line itself, drawn by rich ----------------------------------------------------------------


class TerminalLine:
    """A line below everything else on a terminal, which goes when it is cleared.

    rich is imported when the first text is shown: what ends before costs nothing.

    Args:
        stream: The terminal. Nothing else may be written to it until the line is cleared.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None

    def show(self, text: str) -> None:
        """Replace the line by a text that fits it, without control characters.

        Of a text that is too long, a part in the middle is left out: file names and numbers end it.
        """
        from rich.text import Text

        if self._live is None:
            self._live = _begun(self._stream)
        clean = _fitting(printable(text), self._live.console.width - 1)
        self._live.update(Text(clean, no_wrap=True, overflow="ellipsis"), refresh=True)

    def clear(self) -> None:
        """Remove the line, if there is one."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def is_watched(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that can replace a line."""
    if stream is None or not stream.isatty():
        return False
    return os.environ.get("TERM", "").lower() not in {"dumb", "unknown"}


def _begun(stream: TextIO) -> Live:
    from rich.console import Console
    from rich.live import Live

    class Screen(Console):
        """A console that never hides the cursor: a command that is killed could not restore it."""

        def show_cursor(self, show: bool = True) -> bool:  # noqa: ARG002
            return False

    live = Live(
        console=Screen(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    live.start()
    return live


def _fitting(text: str, width: int) -> str:
    """A text with a part in the middle left out if it is wider than the terminal."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    beginning = text[: width // 3]
    return f"{beginning}…{text[len(beginning) + len(text) - width + 1 :]}"
