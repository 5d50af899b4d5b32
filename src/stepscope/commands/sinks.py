"""Where a verb's output goes: standard output, standard error, or a file."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

import click

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


_PIECE = 1 << 16


class StandardSink:
    """Standard output, or standard error if standard output belongs to another program.

    Args:
        is_error: Write to standard error.
    """

    def __init__(self, *, is_error: bool = False) -> None:
        self._is_error = is_error

    @property
    def is_terminal(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    @property
    def encoding(self) -> str:
        """The encoding of text."""
        return self._stream.encoding or "utf-8"

    @property
    def _stream(self) -> TextIO:
        return sys.stderr if self._is_error else sys.stdout

    def console(self, *, keeps_padding: bool = False, width: int | None = None) -> Console:
        """A console that writes here."""
        from stepscope.report.console import console_on

        return console_on(self._stream, keeps_padding=keeps_padding, width=width)

    def write(self, content: str | bytes) -> None:
        """Write text, or the bytes of a file, in pieces.

        An unbuffered stream reports a closed pipe only at the write after the one that it cut.
        """
        for start in range(0, len(content), _PIECE):
            click.echo(content[start : start + _PIECE], nl=False, err=self._is_error)

    def remark(self, text: str) -> None:
        """Print a remark about the output on standard error."""
        click.echo(text, err=True)


class FileSink:
    """A file, created when something is first written.

    Args:
        path: The file.
    """

    is_terminal = False
    encoding = "utf-8"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._text: io.TextIOWrapper | None = None

    def close(self) -> None:
        """Close the file, if anything was written."""
        if self._file is not None:
            self._file.close()

    def console(self, *, keeps_padding: bool = False, width: int | None = None) -> Console:
        """A console that writes here."""
        from stepscope.report.console import console_on

        if self._text is None:
            self._text = io.TextIOWrapper(
                self._opened(), encoding=self.encoding, newline="\n", write_through=True
            )
        return console_on(self._text, keeps_padding=keeps_padding, width=width)

    def write(self, content: str | bytes) -> None:
        """Write text in UTF-8, or bytes."""
        self._opened().write(content.encode() if isinstance(content, str) else content)

    def remark(self, text: str) -> None:
        """Print a remark about the output on standard error."""
        click.echo(text, err=True)

    def _opened(self) -> BinaryIO:
        """The file.

        Raises:
            UsageError: It cannot be written.
        """
        if self._file is None:
            try:
                self._file = self._path.open("wb")
            except OSError as error:
                raise UsageError(f"{self._path}: cannot be written: {error.strerror}") from error
        return self._file


@contextmanager
def sink_for(output: str | None) -> Iterator[StandardSink | FileSink]:
    """The sink for a value of `--output`; None and `-` mean standard output."""
    if output is None or output == "-":
        yield StandardSink()
        return
    sink = FileSink(Path(output))
    try:
        yield sink
    finally:
        sink.close()
