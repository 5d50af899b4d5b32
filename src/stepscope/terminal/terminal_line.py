"""One line on a terminal that is replaced again and again, drawn by rich."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

from stepscope.terminal.plain_text import printable

if TYPE_CHECKING:
    from rich.live import Live


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
