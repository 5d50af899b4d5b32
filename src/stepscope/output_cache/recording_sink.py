"""A sink that remembers what passes through it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TextIO, cast

from stepscope.report.outputs import Sink

if TYPE_CHECKING:
    from rich.console import Console


class EncodedSink(Sink, Protocol):
    """A sink that tells how its text is encoded."""

    @property
    def encoding(self) -> str:
        """Name of the encoding."""


class RecordingSink:
    """A sink that passes everything on, and remembers it unless that becomes too much.

    Args:
        sink: Where it goes.
        most: How many characters are remembered.

    Attributes:
        texts: What was written; empty if that was too much.
        remarks: What was remarked.
        is_whole: Whether `texts` is all that was written.
    """

    def __init__(self, sink: EncodedSink, most: int) -> None:
        self._sink = sink
        self._most = most
        self._size = 0
        self.texts: list[str] = []
        self.remarks: list[str] = []
        self.is_whole = True

    @property
    def is_terminal(self) -> bool:
        """Whether the sink is a terminal."""
        return self._sink.is_terminal

    @property
    def encoding(self) -> str:
        """The encoding of the sink."""
        return self._sink.encoding

    def isatty(self) -> bool:
        """The same as `is_terminal`, for a console: to it, this is a text stream."""
        return self.is_terminal

    def flush(self) -> None:
        """Do nothing: what is written is passed on at once."""

    def console(self, *, keeps_padding: bool = False, width: int | None = None) -> Console:
        """A console that writes here."""
        from stepscope.report.console import console_on

        return console_on(cast(TextIO, self), keeps_padding=keeps_padding, width=width)

    def write(self, content: str | bytes) -> None:
        """Pass text or bytes on; of these, only text is remembered."""
        self._sink.write(content)
        self._size += len(content)
        self.is_whole &= isinstance(content, str) and self._size <= self._most
        if isinstance(content, str) and self.is_whole:
            self.texts.append(content)
        else:
            self.texts.clear()

    def remark(self, text: str) -> None:
        """Pass a remark on, and remember it."""
        self._sink.remark(text)
        self.remarks.append(text)
