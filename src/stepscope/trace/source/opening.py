"""Opens traces from a path, an fsspec URL or a binary stream, compressed or not.

Compression is detected from the first bytes, never from the file name.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import time
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
from stepscope.trace.source.limits import Limited, limits_of
from stepscope.trace.source.remote import RemoteFile, RemoteStream, find_remote

Location = str | os.PathLike[str] | IO[bytes]
"""A path, an fsspec URL (`s3://…`), the result of `fsspec.open`, or a binary stream."""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_FIRST_BYTES = 64
# Decompressed at once. Gzip makes up to 1032 bytes of one, zstd 32768: at most 32 MiB of a slice.
_GZIP_SLICE_BYTES = 16 * 1024
_ZSTD_SLICE_BYTES = 1024
_GATHERED_BYTES = 1024 * 1024
_LARGE_BYTES = 64 * 1024
"""Pieces of this size are passed on as they are: to join them would be to copy them once more."""
_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_PIPE_S = 1.0
"""How long a named pipe may have no writer: one may be about to open it."""
_DO_NOT_WAIT = getattr(os, "O_NONBLOCK", 0)


class _Inflater(Protocol):
    """Decompresses a stream piece by piece."""

    eof: bool
    unused_data: bytes

    def decompress(self, data: bytes) -> bytes: ...


class Readable(Protocol):
    """An object that can be read sequentially."""

    def read(self, size: int, /) -> bytes:
        """Returns at most `size` of the next bytes; empty at the end."""


@dataclass(frozen=True)
class Source:
    """An opened file, URL or stream.

    Attributes:
        size_bytes: Size as stored, compressed or not; None if unknown.
        stream: The stream, positioned after `first`. It need not be seekable.
        first: The first bytes, already read from the stream.
    """

    name: str
    path: Path | None
    size_bytes: int | None
    stream: Readable
    first: bytes

    @property
    def is_compressed(self) -> bool:
        """Whether the content is compressed with gzip or zstd."""
        return self.first.startswith((_GZIP, _ZSTD))

    def blocks(
        self,
        problems: Problems,
        size: int = BLOCK_BYTES,
        progress: Callable[[int], None] | None = None,
    ) -> Content:
        """Returns the uncompressed content.

        A corrupt or truncated compressed stream ends early, with an entry in `problems`. So does
        one that unpacks to far more than a recorder's file (see `limits`), unless nothing was
        recognised in it by then.

        Args:
            progress: Called with the number of bytes read, as stored.

        Raises:
            UnreadableInputError: Reading fails, or a package for decompression is missing.
        """
        limits = limits_of(self.size_bytes, is_packed=self.is_compressed)
        watch = Limited(self.name, limits, problems, size)
        if self.is_compressed:
            is_gzip = self.first.startswith(_GZIP)
            slice_bytes = _GZIP_SLICE_BYTES if is_gzip else _ZSTD_SLICE_BYTES
            new_inflater = _gzip_inflater if is_gzip else self._zstd_inflater
            raw = self._raw(max(size // 64, 1), progress)
            return Content(_inflated(raw, new_inflater, problems, slice_bytes), size, watch=watch)
        if self.path is None or self.size_bytes is None:
            return Content(self._raw(size, progress), size, watch=watch)
        # Of a large file, little is read before its list of events is: the rest needs no copy.
        first = size if self.size_bytes <= 4 * size else max(size // 16, 1)
        fill = partial(self._fill, progress)
        return Content(self._raw(first, progress), size, fill)

    def _raw(self, size: int, progress: Callable[[int], None] | None) -> Iterator[bytes]:
        """Yields the stored bytes in pieces of `size`: pipes and sockets return less at a time."""
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
        try:
            count: int = cast("BufferedReader", self.stream).readinto(target)
        except (OSError, EOFError, ValueError) as error:
            raise UnreadableInputError(f"{self.name}: cannot be read: {error}") from error
        if progress is not None:
            progress(count)
        return count

    def _zstd_inflater(self) -> _Inflater:
        if sys.version_info >= (3, 14):
            from compression import zstd

            return cast(_Inflater, zstd.ZstdDecompressor())
        try:
            import zstandard
        except ImportError as error:
            raise UnreadableInputError(
                f"{self.name}: compressed with zstd: pip install 'stepscope[zstd]'"
            ) from error
        return cast(_Inflater, zstandard.ZstdDecompressor().decompressobj())


def _gzip_inflater() -> _Inflater:
    from isal import isal_zlib

    return cast(_Inflater, isal_zlib.decompressobj(wbits=31))


def _inflated(
    raw: Iterator[bytes], new_inflater: Any, problems: Problems, slice_bytes: int
) -> Iterator[bytes]:
    """Decompresses a stream of one or more members, in pieces of bounded size."""
    inflater = new_inflater()
    started = False  # the current member has started
    total = 0
    gathered: list[bytes] = []
    held = 0
    for compressed in _sliced(raw, slice_bytes):
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
                yield from filter(None, [b"".join(gathered)])
                return
            started = True
            data = inflater.unused_data if inflater.eof else b""
            total += len(plain)
            if not held and len(plain) >= _LARGE_BYTES:
                yield plain
                continue
            gathered.append(plain)
            held += len(plain)
            if held >= _GATHERED_BYTES:
                yield b"".join(gathered)
                gathered, held = [], 0
    yield from filter(None, [b"".join(gathered)])
    if started and not inflater.eof:
        problems.add("truncated_stream", total)


def _sliced(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    for piece in pieces:
        for start in range(0, len(piece), size):
            yield piece[start : start + size]


@contextmanager
def open_source(location: Location | RemoteFile) -> Iterator[Source]:
    """Opens a trace for reading. Streams given by the caller are left open."""
    if hasattr(location, "read"):
        stream = cast("IO[bytes]", location)
        name = _name_of(stream)
        size = _size_left(stream)
        yield Source(name, None, size, stream, _first_bytes(stream, name))
        return
    remote = location if isinstance(location, RemoteFile) else find_remote(location)
    if isinstance(remote, RemoteFile):
        opened = RemoteStream(remote)
        try:
            first = _first_bytes(opened, remote.name)
            yield Source(remote.name, None, remote.size_bytes, opened, first)
        finally:
            opened.close()
        return
    with _open_local(remote or Path(os.fspath(cast("str", location)))) as local:
        yield local


def beginning_of(path: Path, size: int) -> bytes:
    """About the first `size` bytes of a file, decompressed; empty if it cannot be read."""
    try:
        with open_source(path) as source:
            return next(source.blocks(Problems(), size=size), b"")
    except UnreadableInputError:
        return b""


@contextmanager
def _open_local(path: Path) -> Iterator[Source]:
    if path.is_dir():
        raise UnreadableInputError(
            f"{path}: a directory, not a trace file; use open_run() or "
            "`stepscope report` for a run directory, or name one file in it"
        )
    try:
        status = path.stat()
        # Files of /proc may make a reader wait; real files never do.
        is_file = stat.S_ISREG(status.st_mode)
        is_pipe = stat.S_ISFIFO(status.st_mode)
        opened = os.fdopen(os.open(path, _READ | (_DO_NOT_WAIT if is_file or is_pipe else 0)), "rb")
    except FileNotFoundError:
        hint = "; a pattern names several files: use open_run() or `stepscope report`"
        is_pattern = any(character in str(path) for character in "*?[")
        raise UnreadableInputError(f"{path}: no such file{hint if is_pattern else ''}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnreadableInputError(f"{path}: cannot be opened: {reason}") from error
    with opened:
        begun = _beginning_of_pipe(opened.fileno(), path) if is_pipe else b""
        first = _first_bytes(opened, str(path), begun)
        # A named pipe or /dev/stdin is a stream. Files of /proc hold more than their size says.
        if not is_file or len(first) > status.st_size:
            yield Source(str(path), None, None, opened, first)
            return
        yield Source(str(path), path, status.st_size, opened, first)


def _beginning_of_pipe(pipe: int, path: Path) -> bytes:
    """Waits for somebody to write to a named pipe, but not for long; returns what came first."""
    until = time.monotonic() + _PIPE_S
    while time.monotonic() < until:
        try:
            first = os.read(pipe, 1)
        except BlockingIOError:  # it is open for writing
            first = None
        if first != b"":
            os.set_blocking(pipe, True)
            return first or b""
        time.sleep(0.02)
    raise UnreadableInputError(f"{path}: a named pipe that nobody writes to")


def _name_of(stream: IO[bytes]) -> str:
    name: object = getattr(stream, "name", None)
    if name in (0, "<stdin>"):
        return "standard input"
    return str(name) if isinstance(name, str | os.PathLike) else "<stream>"


def _size_left(stream: IO[bytes]) -> int | None:
    """Returns the bytes left in a plain file or `BytesIO`; None for anything else."""
    if isinstance(stream, io.BytesIO):
        return max(stream.getbuffer().nbytes - stream.tell(), 0)
    raw = stream.raw if isinstance(stream, io.BufferedReader) else stream
    # Not for decompressors: they expose the file number of the compressed file.
    if not isinstance(raw, io.FileIO):
        return None
    try:
        status = os.fstat(raw.fileno())
        return max(status.st_size - stream.tell(), 0) if stat.S_ISREG(status.st_mode) else None
    except (OSError, ValueError):
        return None


def _first_bytes(stream: Readable, name: str, begun: bytes = b"") -> bytes:
    pieces = [begun]
    held = len(begun)
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
    """Returns at most `size` of the next bytes; empty at the end."""
    try:
        piece: object = stream.read(size)
    except UnreadableInputError:
        raise
    except Exception as error:  # decompressors and clients raise their own classes
        raise UnreadableInputError(f"{name}: cannot be read: {error}") from error
    if isinstance(piece, bytes):
        return piece
    if piece is None:
        raise UnreadableInputError(
            f"{name}: has nothing to read yet; name a trace, or a stream that blocks"
        )
    if isinstance(piece, (bytearray, memoryview)):
        return bytes(piece)
    raise UnreadableInputError(f"{name}: a text stream; open it in binary mode ('rb')")
