"""One line about how far something is, on a terminal that somebody watches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from stepscope.terminal.terminal_line import TerminalLine, is_watched
from stepscope.terminal.working import current_line

_INTERVAL_SECONDS = 0.2
_PATIENCE_SECONDS = 1.0


class StatusLine:
    """One line on stderr that is replaced again and again. Silent unless stderr is a terminal.

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
        if self._enabled and now - self._shown >= _INTERVAL_SECONDS:
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
