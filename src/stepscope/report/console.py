"""Where tables are printed: a terminal, or a file or pipe that wants no padding."""

from __future__ import annotations

import re
import sys
from typing import TextIO

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


def console(*, stderr: bool = False) -> Console:
    """A console on standard output, or standard error.

    Tables fill their columns with blanks, which a terminal does not show and a diff does.
    """
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False, soft_wrap=False)
    return Console(file=_Unpadded(stream), highlight=False, soft_wrap=False)  # type: ignore[arg-type]
