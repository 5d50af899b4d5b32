"""Where tables and lines are printed: a terminal, or a file or pipe that wants no padding."""

from __future__ import annotations

import re
import sys
from typing import Any, TextIO

from rich.console import Console

_PADDING = re.compile(r"[ \t]+(?=\n)")


class _Unpadded:
    """A text stream that writes lines without the blanks at their ends."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text that ends with its lines."""
        self._stream.write(_PADDING.sub("", text))
        return len(text)

    def flush(self) -> None:
        """Hand on what is buffered."""
        self._stream.flush()

    def isatty(self) -> bool:
        """Whether it is a terminal: never."""
        return False

    @property
    def encoding(self) -> str:
        """The stream's own."""
        return self._stream.encoding or "utf-8"


def console(
    *, stderr: bool = False, keeps_padding: bool = False, width: int | None = None
) -> Console:
    """A console on standard output, or standard error.

    Tables fill their columns with blanks, which a terminal does not show and a diff does.

    Args:
        stderr: On standard error.
        keeps_padding: Whether blanks at the ends of lines are kept where nobody watches.
        width: Columns; by default those of the terminal.
    """
    return console_on(
        sys.stderr if stderr else sys.stdout, keeps_padding=keeps_padding, width=width
    )


def console_on(stream: TextIO, *, keeps_padding: bool = False, width: int | None = None) -> Console:
    """The same on a stream."""
    keeps = keeps_padding or stream.isatty()
    file: Any = stream if keeps else _Unpadded(stream)
    return Console(file=file, width=width, highlight=False, soft_wrap=False)


def print_heading(console: Console, text: str) -> None:
    """A heading, below an empty line."""
    console.print()
    console.print(text, style="bold", markup=False)


def print_line(console: Console, text: str) -> None:
    """A line as it is, however long."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
