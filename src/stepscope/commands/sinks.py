"""Where a verb's output goes: standard output, standard error, or a file; and its messages."""

from __future__ import annotations

import io
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

import click

from stepscope.errors import UsageError
from stepscope.terminal.plain_text import escaped

if TYPE_CHECKING:
    from rich.console import Console


_PIECE = 1 << 16


class StandardSink:
    """Standard output, or standard error if standard output belongs to another program."""

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
            piece = content[start : start + _PIECE]
            if isinstance(piece, bytes):
                click.echo(piece, nl=False, err=self._is_error)
            else:  # click would write UTF-8 to a stream that has another encoding
                self._stream.write(piece)
                self._stream.flush()

    def remark(self, text: str) -> None:
        """Print a remark about the output on standard error."""
        click.echo(text, err=True)


class FileSink:
    """A file, begun when something is first written. It appears, or is replaced, when all is.

    What is no regular file, as a named pipe, is written to directly, and so is a file in a folder
    that takes no other.
    """

    is_terminal = False
    encoding = "utf-8"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._text: io.TextIOWrapper | None = None
        self._replacing: tuple[Path, Path] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether anything was written."""
        return self._file is not None

    def close(self, *, is_complete: bool = True) -> None:
        """Close the file, if anything was written.

        Args:
            is_complete: Whether all was written. Otherwise what was there before stays.
        """
        if self._file is None:
            return
        try:
            self._file.close()
            if self._replacing is not None and is_complete:
                temporary, target = self._replacing
                temporary.replace(target)
                self._replacing = None
        except OSError as error:
            if is_complete:
                raise self._unwritable(error) from error
        finally:
            if self._replacing is not None:
                with suppress(OSError):
                    self._replacing[0].unlink()

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
        opened = self._opened()
        try:
            opened.write(content.encode() if isinstance(content, str) else content)
        except OSError as error:
            raise self._unwritable(error) from error

    def remark(self, text: str) -> None:
        """Print a remark about the output on standard error."""
        click.echo(text, err=True)

    def _opened(self) -> BinaryIO:
        if self._file is None:
            try:
                self._file = self._begun() or self._path.open("wb")
            except OSError as error:
                raise self._unwritable(error) from error
        return self._file

    def _begun(self) -> BinaryIO | None:
        """A temporary file beside the file; None if the file itself has to be written to."""
        target = self._path.resolve()  # a link stays a link
        if target.exists() and not (target.is_file() and os.access(target, os.W_OK)):
            return None
        temporary = target.with_name(f".stepscope-{os.getpid()}-{time.monotonic_ns()}.tmp")
        try:
            opened = temporary.open("xb")
        except OSError:
            return None
        self._replacing = (temporary, target)
        if target.exists():
            with suppress(OSError):
                shutil.copymode(target, temporary)
        return opened

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"{self._path}: cannot be written: {error.strerror or error}")


CommandSink = StandardSink | FileSink


@contextmanager
def sink_for(output: str | None) -> Iterator[CommandSink]:
    """The sink for a value of `--output`; None and `-` mean standard output.

    When a file is complete, its name and size are printed, as `stepscope export` does.
    """
    if output is None or output == "-":
        yield StandardSink()
        return
    sink = FileSink(Path(output))
    try:
        yield sink
    except BaseException:
        sink.close(is_complete=False)
        raise
    sink.close()
    if sink.is_begun and Path(output).is_file():  # not a pipe, whose reader gets the content alone
        from stepscope.report.units import decimal_size

        click.echo(f"{escaped(output)}: {decimal_size(Path(output).stat().st_size)}")


def print_message(message: str) -> None:
    """Print a line on standard error: standard output belongs to the result, or to a script."""
    click.echo(f"stepscope: {message}", err=True)


@contextmanager
def naming_folder_if_interrupted(folder: Path) -> Iterator[None]:
    """Name the folder with what was recorded so far, if the block is interrupted.

    Nothing is removed: the folder may hold earlier runs, and a half-finished one can be read.
    """
    try:
        yield
    except KeyboardInterrupt:
        if folder.is_dir():
            print_message(
                f"interrupted: {escaped(str(folder))} keeps what was written until then; remove it"
                " if you do not need it"
            )
        raise
