"""Traces at fsspec URLs, read sequentially and with a timeout.

All services are treated alike except HTTP, which is read over one connection, so that it works
without range requests, and whose client gets the timeout too.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from stepscope.errors import UnreadableInputError
from stepscope.opening.remote import (
    SILENCE_VARIABLE,
    TRY_AGAIN,
    Deadline,
    cannot_be_opened,
    http_options,
    is_http,
    known_version,
    reason_for,
    redacted,
    silence_seconds,
)

Answer = TypeVar("Answer")

_BLOCK_BYTES = 4 * 1024 * 1024
_LEAST_BYTES = 10_000  # to come in the time that a server may be silent
_CLOSE_SECONDS = 5.0


class _Worker:
    """A thread for calls that may never return, so that the caller can time out."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seconds = silence_seconds()
        self._asked: queue.Queue[Callable[[], Any] | None] = queue.Queue()
        self._answers: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()
        self._is_stuck = False
        threading.Thread(target=self._work, name="stepscope-remote", daemon=True).start()

    def _work(self) -> None:
        while (function := self._asked.get()) is not None:
            self._answers.put(_outcome(function))

    def ask(self, function: Callable[[], Answer]) -> Answer:
        """Calls a function in the thread, and returns or raises what it does."""
        self._asked.put(function)
        try:
            answer, error = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            self._is_stuck = True
            raise UnreadableInputError(
                f"{self._name}: no data for {self._seconds:g} s; {TRY_AGAIN} "
                f"({SILENCE_VARIABLE}=SECONDS raises the timeout)"
            ) from None
        except BaseException:
            self._is_stuck = True  # interrupted: a late answer must not reach the next call
            raise
        if error is not None:
            raise error
        return cast(Answer, answer)

    def close(self, function: Callable[[], Any]) -> None:
        """Makes one last call, unless the thread is stuck, and ends the thread."""
        if not self._is_stuck:
            self._seconds = min(self._seconds, _CLOSE_SECONDS)
            with suppress(Exception):  # reading is complete or has failed already
                self.ask(function)
        self._asked.put(None)


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - re-raised in the calling thread
        return None, error


@dataclass(frozen=True)
class RemoteFile:
    """A file in an fsspec file system.

    Attributes:
        name: The URL without passwords and query, for messages.
        version: Identifies this content (`run.remote.version_of`); empty if the service reports
            nothing that does.
    """

    name: str
    url: str
    file_system: Any
    path: str
    size_bytes: int | None
    version: str


class RemoteStream:
    """A remote file, read sequentially. Errors say where they occurred and what to do."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._at = 0
        self._deadline = Deadline(file.name)
        self._waited, self._received = 0.0, 0  # since the pace was last looked at
        self._worker = _Worker(file.name)
        size = 0 if is_http(file.file_system) else _BLOCK_BYTES
        options: dict[str, Any] = {"block_size": size}
        if not size:
            options["size"] = file.size_bytes or 1  # saves another request
        try:
            self._stream: IO[bytes] = self._worker.ask(
                lambda: file.file_system.open(file.path, "rb", **options)
            )
        except UnreadableInputError:
            self._worker.close(lambda: None)
            raise
        except Exception as error:
            self._worker.close(lambda: None)
            raise cannot_be_opened(file.name, error) from error

    def read(self, size: int) -> bytes:
        """Returns at most `size` of the next bytes; empty only at the end.

        Raises:
            UnreadableInputError: The connection broke, ended early, timed out or is too slow.
        """
        total = self._file.size_bytes
        self._deadline.check()
        began = time.monotonic()
        try:
            piece: bytes = self._worker.ask(lambda: self._stream.read(size))
            if piece:
                self._check_pace(len(piece), time.monotonic() - began)
        except UnreadableInputError as error:
            raise UnreadableInputError(f"{error}; stopped at byte {self._position()}") from None
        except Exception as error:
            self._deadline.check()  # the client has the same limit, and may have ended first
            raise UnreadableInputError(
                f"{self._file.name}: the connection broke at byte {self._position()}"
                f" ({reason_for(error)}); {TRY_AGAIN}"
            ) from error
        if not piece and total is not None and self._at < total:
            raise UnreadableInputError(
                f"{self._file.name}: ended early, at byte {self._position()}; {TRY_AGAIN}"
            )
        self._at += len(piece)
        return piece

    def _position(self) -> str:
        total = self._file.size_bytes
        return str(self._at) if total is None else f"{self._at} of {total}"

    def _check_pace(self, count: int, seconds: float) -> None:
        """Counts the bytes of one read, and the seconds that it took.

        Raises:
            UnreadableInputError: Too few came in the time that a server may be silent.
        """
        self._waited += seconds
        self._received += count
        if self._waited < silence_seconds():
            return
        if self._received < _LEAST_BYTES:
            raise UnreadableInputError(
                f"{self._file.name}: only {self._received} bytes in {self._waited:.3g} s; "
                f"{TRY_AGAIN} ({SILENCE_VARIABLE}=SECONDS raises the timeout)"
            )
        self._waited, self._received = 0.0, 0

    def close(self) -> None:
        """Closes the connection."""
        self._worker.close(self._stream.close)


def find_remote(location: object) -> RemoteFile | Path | None:
    """Finds the file for an fsspec URL or an unopened fsspec file.

    Returns:
        A path if the file is local; None if the location is neither.
    """
    if isinstance(location, str) and "://" in location:
        url: str | None = location
    elif _is_open_file(location):
        url = None
    else:
        return None
    worker = _Worker(redacted(url) if url else str(location))
    try:
        return worker.ask(lambda: _found(location, url))
    except UnreadableInputError:
        raise
    except Exception as error:
        raise cannot_be_opened(redacted(url) if url else str(location), error) from error
    finally:
        worker.close(lambda: None)


def _found(location: Any, url: str | None) -> RemoteFile | Path:
    if url is None:
        file_system, path = location.fs, location.path
        url = str(file_system.unstrip_protocol(path))
    else:
        from fsspec.core import url_to_fs

        file_system, path = url_to_fs(url, **http_options(url))
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(file_system, LocalFileSystem):
        return Path(path)
    details = file_system.info(path)
    name = redacted(url)
    if details.get("type") == "directory":
        raise UnreadableInputError(
            f"{name}: a directory, not a trace file; name one file in it, or use"
            " `stepscope report` for a run directory"
        )
    size = details.get("size")
    return RemoteFile(
        name,
        url,
        file_system,
        path,
        size if isinstance(size, int) else None,
        known_version(file_system, path, details),
    )


def _is_open_file(location: object) -> bool:
    """Whether this is an fsspec `OpenFile`: a file with a file system, not open yet."""
    return (
        not hasattr(location, "read")
        and hasattr(location, "fs")
        and isinstance(getattr(location, "path", None), str)
    )
