"""Consoles for terminals, and for files and pipes, which get no trailing spaces."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

if TYPE_CHECKING:
    from stepscope.report.outputs import Sink

UNLIMITED = 10_000
"""Width in columns where nobody watches: tables are as wide as they need to be."""
_PADDING = " \t"


class _Unpadded:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        *lines, rest = text.split("\n")
        self._stream.write("\n".join([*(line.rstrip(_PADDING) for line in lines), rest]))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return False

    @property
    def encoding(self) -> str:
        return self._stream.encoding or "utf-8"


class _Screen(Console):
    """A console that lets a closed pipe end the command as for any other output."""

    def on_broken_pipe(self) -> None:
        """Raise the error again. rich would exit with 1."""
        self.quiet = True
        raise BrokenPipeError


def console_on(stream: TextIO, *, keeps_padding: bool = False, width: int | None = None) -> Console:
    """A console on a stream.

    Tables pad their columns with spaces, which a terminal does not show but a diff does.

    Args:
        keeps_padding: Whether files and pipes get trailing spaces.
        width: Width in columns; by default that of the terminal.
    """
    keeps = keeps_padding or stream.isatty()
    file: Any = stream if keeps else _Unpadded(stream)
    return _Screen(file=file, width=width, highlight=False, soft_wrap=False)


def width_for(sink: Sink) -> int | None:
    """The width for tables: None, that of the terminal; unlimited in a file or pipe.

    The variable COLUMNS, if it is exported, is the width everywhere.
    """
    return None if sink.is_terminal or os.environ.get("COLUMNS") else UNLIMITED
