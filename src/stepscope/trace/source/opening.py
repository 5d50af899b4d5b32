"""Opens what a trace may come as: a path, an fsspec URL or a binary stream, compressed or not.

Nothing goes by a file's name: compression is found by the first bytes.
"""

from __future__ import annotations

import io
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, Protocol, cast

from stepscope.errors import UnreadableInputError
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import BLOCK_BYTES, Content
from stepscope.trace.source.remote import RemoteFile, find_remote

Location = str | os.PathLike[str] | IO[bytes]
"""A path, an fsspec URL (`s3://…`) or a binary stream; what `fsspec.open` returns is as a URL."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_FIRST_BYTES = 64


class _Inflater(Protocol):
    """What turns compressed bytes into plain ones, piece by piece."""

    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes) -> bytes: ...


class Readable(Protocol):
    """What can be read from front to back."""

    def read(self, size: int, /) -> bytes:
        """At most so many of the next bytes; empty at the end."""


@dataclass(frozen=True)
class Source:
    """Something to read a trace from.

    Attributes:
        name: For messages.
        path: The local file; None for a URL or a stream.
        size_bytes: Size as stored, compressed or not; None where unknown.
        stream: Positioned at the first byte; it need not be able to seek.
        first: Its first bytes, which the stream will not give again.
    """

    name: str
    path: Path | None
    size_bytes: int | None
    stream: Readable
    first: bytes

    @property
    def is_compressed(self) -> bool:
        """Whether the content is gzip or zstd."""
        return self.first.startswith((_GZIP, _ZSTD))

    def blocks(
        self,
        problems: Problems,
        size: int = BLOCK_BYTES,
        progress: Callable[[int], None] | None = None,
    ) -> Content:
        """The uncompressed content.

        Args:
            problems: Receives what is wrong with the compressed stream.
            size: How many bytes should be in hand at once.
            progress: Is told how many bytes, as stored, were read.

        A damaged or truncated compressed stream ends early, with an entry in `problems`.

        Raises:
            UnreadableInputError: Reading fails, or a package to inflate it is missing.
        """
        if self.first.startswith(_GZIP):
            raw = self._raw(max(size // 64, 1), progress)
            return Content(_inflated(raw, _gzip_inflater, problems), size)
        if self.first.startswith(_ZSTD):
            raw = self._raw(max(size // 64, 1), progress)
            return Content(_inflated(raw, self._zstd_inflater, problems), size)
        raw = self._raw(size, progress)
        return Content(raw, size, None if self.path is None else partial(self._fill, progress))

    def _raw(self, size: int, progress: Callable[[int], None] | None) -> Iterator[bytes]:
        """Pieces as stored, of `size` bytes: pipes and sockets hand out less at once."""
        pieces, held = [self.first], len(self.first)
        is_over = False
        while not is_over:
            while held < size and not is_over:
                piece = _read(self.stream, size - held, self.name)
                pieces.append(piece)
                held += len(piece)
                is_over = not piece
            if held:
                if progress is not None:
                    progress(held)
                yield b"".join(pieces)
            pieces, held = [], 0

    def _fill(self, progress: Callable[[int], None] | None, target: memoryview) -> int:
        with self._reading():
            count: int = cast("BufferedReader", self.stream).readinto(target)
        if progress is not None:
            progress(count)
        return count

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, ValueError) as error:
            raise UnreadableInputError(f"{self.name}: cannot be read: {error}") from error

    def _zstd_inflater(self) -> _Inflater:
        if sys.version_info >= (3, 14):
            from compression import zstd

            return cast(_Inflater, zstd.ZstdDecompressor())
        try:
            import zstandard
        except ImportError as error:
            raise UnreadableInputError(
                f"{self.name}: compressed with zstd; install stepscope[zstd] to read it"
            ) from error
        return cast(_Inflater, zstandard.ZstdDecompressor().decompressobj())


def _gzip_inflater() -> _Inflater:
    from isal import isal_zlib

    return cast(_Inflater, isal_zlib.decompressobj(wbits=31))


def _inflated(raw: Iterator[bytes], new_inflater: Any, problems: Problems) -> Iterator[bytes]:
    """Inflates a stream of one or several members."""
    inflater = new_inflater()
    started = False  # the current member has had data
    total = 0
    for compressed in raw:
        data = compressed
        while data:
            if inflater.eof:
                data = data.lstrip(b"\x00")  # padding between or after members
                if not data:
                    break
                inflater, started = new_inflater(), False
            try:
                plain = inflater.decompress(data)
            except Exception:  # noqa: BLE001 - each library raises its own class
                problems.add("corrupt_stream", total)
                return
            started = True
            data = inflater.unused_data if inflater.eof else b""
            total += len(plain)
            if plain:
                yield plain
    if started and not inflater.eof:
        problems.add("truncated_stream", total)


@contextmanager
def open_source(location: Location | RemoteFile) -> Iterator[Source]:
    """Opens a trace for reading, and closes what it opened.

    Raises:
        UnreadableInputError: There is nothing to read; says why and what to do.
    """
    if hasattr(location, "read"):
        stream = cast("IO[bytes]", location)
        name = _name_of(stream)
        size = _size_left(stream)
        yield Source(name, None, size, stream, _first_bytes(stream, name))
        return
    remote = location if isinstance(location, RemoteFile) else find_remote(location)
    if isinstance(remote, RemoteFile):
        opened = remote.open()
        try:
            first = _first_bytes(opened, remote.name)
            yield Source(remote.name, None, remote.size_bytes, opened, first)
        finally:
            opened.close()
        return
    with _open_local(remote or Path(os.fspath(cast("str", location)))) as local:
        yield local


@contextmanager
def _open_local(path: Path) -> Iterator[Source]:
    if path.is_dir():
        raise UnreadableInputError(
            f"{path}: a directory, not a trace file; use open_run() or "
            "`stepscope report` for a run directory, or name one file in it"
        )
    try:
        status = path.stat()
        opened = path.open("rb")
    except FileNotFoundError:
        hint = "; a pattern names several files: use open_run() or `stepscope report`"
        is_pattern = any(character in str(path) for character in "*?[")
        raise UnreadableInputError(f"{path}: no such file{hint if is_pattern else ''}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableInputError(f"{path}: cannot be opened: {reason}") from error
    with opened:
        first = _first_bytes(opened, str(path))
        if not stat.S_ISREG(status.st_mode):  # a named pipe, /dev/stdin: a stream
            yield Source(str(path), None, None, opened, first)
            return
        yield Source(str(path), path, status.st_size, opened, first)


def _name_of(stream: IO[bytes]) -> str:
    name: object = getattr(stream, "name", None)
    if name in (0, "<stdin>"):
        return "standard input"
    return str(name) if isinstance(name, str | os.PathLike) else "<stream>"


def _size_left(stream: IO[bytes]) -> int | None:
    """How much a plain file or bytes in memory still have; None for everything else."""
    if isinstance(stream, io.BytesIO):
        return max(stream.getbuffer().nbytes - stream.tell(), 0)
    raw = stream.raw if isinstance(stream, io.BufferedReader) else stream
    # Only of these: a decompressor has the number of its file too, and another size.
    if not isinstance(raw, io.FileIO):
        return None
    try:
        status = os.fstat(raw.fileno())
        return max(status.st_size - stream.tell(), 0) if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError):
        return None


def _first_bytes(stream: Readable, name: str) -> bytes:
    pieces: list[bytes] = []
    held = 0
    while held < _FIRST_BYTES:
        piece = _read(stream, _FIRST_BYTES - held, name)
        if not piece:
            break
        pieces.append(piece)
        held += len(piece)
    if not held:
        raise UnreadableInputError(f"{name}: empty; the recorder wrote nothing")
    return b"".join(pieces)


def _read(stream: Readable, size: int, name: str) -> bytes:
    """At most so many of the next bytes; empty at the end.

    Raises:
        UnreadableInputError: Reading fails, or gives no bytes.
    """
    try:
        piece: object = stream.read(size)
    except UnreadableInputError:
        raise
    except Exception as error:  # a decompressor or a client may have classes of its own
        raise UnreadableInputError(f"{name}: cannot be read: {error}") from error
    if isinstance(piece, bytes):
        return piece
    if piece is None:
        raise UnreadableInputError(f"{name}: has nothing to read yet; make it a blocking stream")
    if isinstance(piece, (bytearray, memoryview)):
        return bytes(piece)
    raise UnreadableInputError(f"{name}: a text stream; open it in binary mode ('rb')")
