"""Traces that lie where an fsspec URL leads: read from front to back, with limited patience.

Nothing here knows one service from another, except that HTTP is read over one connection, which
works without range requests, and that its client is told how long to wait.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.run.remote import version_of

Answer = TypeVar("Answer")

_BLOCK_BYTES = 4 * 1024 * 1024
_CONNECT_SECONDS = 30
_CLOSE_SECONDS = 5.0
_REMEDY = "try again, or copy it to a local disk and open that"


def patience_seconds() -> float:
    """How long a server may stay silent (`STEPSCOPE_REMOTE_TIMEOUT`, in seconds; 120).

    Raises:
        UsageError: The variable is no number of seconds.
    """
    given = os.environ.get("STEPSCOPE_REMOTE_TIMEOUT", "120")
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"STEPSCOPE_REMOTE_TIMEOUT={given} is no number of seconds above 0")
    return seconds


class _Worker:
    """A thread that does what may never return, so that whoever asks need not wait for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seconds = patience_seconds()
        self._asked: queue.Queue[Callable[[], Any] | None] = queue.Queue()
        self._answers: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue()
        self._is_stuck = False
        threading.Thread(target=self._work, name="stepscope-remote", daemon=True).start()

    def _work(self) -> None:
        while (function := self._asked.get()) is not None:
            self._answers.put(_outcome(function))

    def ask(self, function: Callable[[], Answer]) -> Answer:
        """What a function returns, or raises.

        Raises:
            UnreadableInputError: It took too long.
        """
        self._asked.put(function)
        try:
            answer, error = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            self._is_stuck = True
            raise UnreadableInputError(
                f"{self._name}: nothing came for {self._seconds:g} s; {_REMEDY} "
                "(STEPSCOPE_REMOTE_TIMEOUT=SECONDS waits longer)"
            ) from None
        except BaseException:
            self._is_stuck = True  # an interrupt: the answer will come when nobody waits for it
            raise
        if error is not None:
            raise error
        return cast(Answer, answer)

    def close(self, function: Callable[[], Any]) -> None:
        """Does a last thing, unless the thread is stuck, and ends it."""
        if not self._is_stuck:
            self._seconds = min(self._seconds, _CLOSE_SECONDS)
            with suppress(Exception):  # what was read is complete, or has failed already
                self.ask(function)
        self._asked.put(None)


def _outcome(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - handed to the thread that asks
        return None, error


@dataclass(frozen=True)
class RemoteFile:
    """A file that an fsspec file system has.

    Attributes:
        name: Its URL without passwords and queries, for messages.
        url: Its whole URL.
        file_system: The fsspec file system.
        path: Its path there.
        size_bytes: As stored; None where the service does not say.
        version: What tells this content from a later one (`run.remote.version_of`); empty where
            the service says nothing of the kind.
    """

    name: str
    url: str
    file_system: Any
    path: str
    size_bytes: int | None
    version: str

    def open(self) -> RemoteStream:
        """Opens it for reading from front to back.

        Raises:
            UnreadableInputError: It cannot be opened; says why and what to do.
        """
        return RemoteStream(self)

    def probe(self, size: int) -> str:
        """A digest of its first, middle and last `size` bytes.

        Where the server sends no ranges, of the first alone.

        Raises:
            UnreadableInputError: It cannot be read.
        """
        worker = _Worker(self.name)
        digest = hashlib.blake2b(digest_size=16)
        last = max(0, (self.size_bytes or 0) - size)
        try:
            pieces = worker.ask(lambda: self._pieces(sorted({0, last // 2, last}), size))
        except UnreadableInputError:
            raise
        except Exception as error:
            raise _failure(self.name, error) from error
        finally:
            worker.close(lambda: None)
        for piece in pieces:
            digest.update(piece)
        return f"{digest.hexdigest()}{'' if len(pieces) > 1 or not last else ' (beginning)'}"

    def _pieces(self, offsets: list[int], size: int) -> list[bytes]:
        if not _is_http(self.file_system):
            with self.file_system.open(self.path, "rb", block_size=size) as opened:
                return [_read_at(opened, offset, size) for offset in offsets]
        # This client refuses at once what a server sends that knows no ranges.
        with (
            suppress(Exception),
            self.file_system.open(
                self.path, "rb", block_size=size, cache_type="none", size=self.size_bytes
            ) as opened,
        ):
            return [_read_at(opened, offset, size) for offset in offsets]
        with self.file_system.open(self.path, "rb", block_size=0, size=self.size_bytes) as opened:
            return [_read_fully(opened, size)]


class RemoteStream:
    """A remote file from front to back; whatever goes wrong says where and what to do."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._at = 0
        self._worker = _Worker(file.name)
        size = 0 if _is_http(file.file_system) else _BLOCK_BYTES
        options: dict[str, Any] = {"block_size": size}
        if not size:
            options["size"] = file.size_bytes or 1  # or it would be asked for once more
        try:
            self._stream: IO[bytes] = self._worker.ask(
                lambda: file.file_system.open(file.path, "rb", **options)
            )
        except UnreadableInputError:
            self._worker.close(lambda: None)
            raise
        except Exception as error:
            self._worker.close(lambda: None)
            raise _failure(file.name, error) from error

    def read(self, size: int) -> bytes:
        """At most so many of the next bytes; empty only at the end.

        Raises:
            UnreadableInputError: The connection broke, ended early or stayed silent.
        """
        total = self._file.size_bytes
        try:
            piece: bytes = self._worker.ask(lambda: self._stream.read(size))
        except UnreadableInputError as error:
            raise UnreadableInputError(f"{error}; stopped at byte {self._place()}") from None
        except Exception as error:
            raise UnreadableInputError(
                f"{self._file.name}: the connection broke at byte {self._place()}"
                f" ({_reason(error)}); {_REMEDY}"
            ) from error
        if not piece and total is not None and self._at < total:
            raise UnreadableInputError(
                f"{self._file.name}: ended early, at byte {self._place()}; {_REMEDY}"
            )
        self._at += len(piece)
        return piece

    def _place(self) -> str:
        total = self._file.size_bytes
        return str(self._at) if total is None else f"{self._at} of {total}"

    def close(self) -> None:
        """Ends the connection."""
        self._worker.close(self._stream.close)


def find_remote(location: object) -> RemoteFile | Path | None:
    """The file that an fsspec URL, or an fsspec file that nobody has opened, means.

    Returns:
        A path where it is on this machine; None where the location is neither.

    Raises:
        UnreadableInputError: It cannot be reached, or is no file; says why and what to do.
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
        raise _failure(redacted(url) if url else str(location), error) from error
    finally:
        worker.close(lambda: None)


def _found(location: Any, url: str | None) -> RemoteFile | Path:
    if url is None:
        file_system, path = location.fs, location.path
        url = str(file_system.unstrip_protocol(path))
    else:
        from fsspec.core import url_to_fs

        file_system, path = url_to_fs(url, **_http_options(url))
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
    version = version_of(details)
    if not version:
        with suppress(Exception):  # most services do not offer it
            version = f"modified={file_system.modified(path).isoformat()}"
    return RemoteFile(
        name, url, file_system, path, size if isinstance(size, int) else None, version
    )


def redacted(url: str) -> str:
    """A URL as it may be shown and kept: without user, password and query."""
    if "::" in url or "://" not in url:
        return url.partition("?")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _is_open_file(location: object) -> bool:
    """Whether it is fsspec's `OpenFile`: a file that has a file system and is not open yet."""
    return (
        not hasattr(location, "read")
        and hasattr(location, "fs")
        and isinstance(getattr(location, "path", None), str)
    )


def _is_http(file_system: Any) -> bool:
    protocol = getattr(file_system, "protocol", ())
    return "http" in ((protocol,) if isinstance(protocol, str) else protocol)


def _http_options(url: str) -> dict[str, Any]:
    """For HTTP: how long to wait, and that content comes as it is stored."""
    if not url.startswith(("http://", "https://")):
        return {}
    try:
        aiohttp = importlib.import_module("aiohttp")  # an extra: fsspec needs it too
    except ImportError as error:
        raise UnreadableInputError(
            f"{redacted(url)}: reading over HTTP needs aiohttp: pip install 'stepscope[http]', or"
            " download the file and open that"
        ) from error
    from fsspec.config import conf

    configured = conf.get(url.partition(":")[0], {})
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=min(_CONNECT_SECONDS, patience_seconds()),
        sock_read=patience_seconds(),
    )  # fmt: skip
    return {
        "client_kwargs": {"timeout": timeout, **configured.get("client_kwargs", {})},
        "headers": {"Accept-Encoding": "identity", **configured.get("headers", {})},
    }


def _read_at(opened: Any, offset: int, size: int) -> bytes:
    opened.seek(offset)
    return _read_fully(opened, size)


def _read_fully(opened: Any, size: int) -> bytes:
    pieces: list[bytes] = []
    left = size
    while left > 0 and (piece := opened.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _failure(name: str, error: BaseException) -> UnreadableInputError:
    """What to say about a file that cannot be opened."""
    return UnreadableInputError(f"{name}: cannot be opened: {_reason(error)}; {_advice(error)}")


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _status(error: BaseException) -> int | None:
    for cause in _causes(error):
        status = getattr(cause, "status", None)
        if isinstance(status, int):
            return status
    return None


def _reason(error: BaseException) -> str:
    """Why something failed, on one line: a client's own words lie beneath fsspec's."""
    cause = _causes(error)[-1] if isinstance(error, FileNotFoundError) else error
    status = getattr(cause, "status", None)
    if isinstance(status, int):
        return f"the server answers {status} {getattr(cause, 'message', '')}".strip()
    if isinstance(cause, FileNotFoundError):
        return "there is no such file"
    text = " ".join(str(cause).split())
    if isinstance(cause, ImportError | ValueError) and text:
        return text
    return f"{type(cause).__name__}: {text}"


def _advice(error: BaseException) -> str:
    status = _status(error)
    causes = _causes(error)
    if status in (401, 403):
        return "give the credentials that its service asks for (fsspec's configuration)"
    if status in (404, 410) or isinstance(causes[-1], FileNotFoundError | ValueError):
        return "check the address"
    if isinstance(error, ImportError):
        return "install that, or copy the file to a local disk and open that"
    return f"check the address and the network, {_REMEDY}"
