"""URLs of fsspec: what they name, what their services need, and which version a file has."""

from __future__ import annotations

import importlib
import os
import re
import time
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from stepscope.errors import UnreadableInputError, UsageError

_CONNECT_SECONDS = 30
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_VERSION_KEYS = frozenset(
    {
        "etag", "md5", "md5hash", "contentmd5", "digest", "checksum", "crc32c", "sha", "sha256",
        "generation", "versionid", "lastmodified", "mtime", "modified", "modifiedat",
        "modifiedtime", "timemodified", "updated",
    }
)  # fmt: skip
"""Keys of versions without case and punctuation, which differ between services."""


def is_url(text: str) -> bool:
    """Whether a text is an fsspec URL such as `s3://bucket/run`, not a path."""
    return _URL.match(text) is not None


def redacted(url: str) -> str:
    """Returns a URL without user, password and query, safe to show and store."""
    if "::" in url or "://" not in url:
        return url.partition("?")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def as_shown(location: str) -> str:
    """A path as it is, or a URL without what is for its server alone: see `redacted`."""
    return redacted(location) if "://" in location else location


def http_options(url: str) -> dict[str, Any]:
    """Options of fsspec for a URL over HTTP: the timeouts, and content as it is stored."""
    if not url.startswith(("http://", "https://")):
        return {}
    try:
        aiohttp = importlib.import_module("aiohttp")  # an optional dependency, needed by fsspec
    except ImportError as error:
        raise UnreadableInputError(
            f"{redacted(url)}: reading over HTTP needs aiohttp: pip install 'stepscope[http]', or"
            " download the file and open that"
        ) from error
    from fsspec.config import conf

    configured = conf.get(url.partition(":")[0], {})
    silence = silence_seconds()
    timeout = aiohttp.ClientTimeout(
        total=total_seconds(), sock_connect=min(_CONNECT_SECONDS, silence), sock_read=silence
    )
    return {
        "client_kwargs": {"timeout": timeout, **configured.get("client_kwargs", {})},
        "headers": {"Accept-Encoding": "identity", **configured.get("headers", {})},
    }


def is_http(file_system: Any) -> bool:
    """Whether an fsspec file system reads over HTTP."""
    protocol = getattr(file_system, "protocol", ())
    return "http" in ((protocol,) if isinstance(protocol, str) else protocol)


def is_directory(url: str) -> bool:
    """Whether a URL names a directory rather than one file.

    A name with a suffix is a file. On http(s), only a trailing slash makes a directory. Otherwise,
    the service is asked.
    """
    if "." in url.rstrip("/").rpartition("/")[2]:
        return False
    if url.startswith(("http://", "https://")):
        return url.endswith("/")
    from fsspec.core import url_to_fs

    try:
        file_system, path = url_to_fs(url)
        return bool(file_system.isdir(path))
    except Exception:  # noqa: BLE001 - services raise anything; reading reports it
        return False


def version_of(details: dict[str, Any]) -> str:
    """What distinguishes versions of a file, by fsspec's `info`; empty if the service says nothing.

    That is digests, version numbers and modification times.
    """
    headers = {
        re.sub(r"[^a-z0-9]", "", key.lower()): value
        for key, value in details.items()
        if value not in (None, "", 0)
    }
    return " ".join(f"{key}={headers[key]}" for key in sorted(headers.keys() & _VERSION_KEYS))


def known_version(file_system: Any, path: str, details: dict[str, Any]) -> str:
    """`version_of` a file; where its details say nothing, the service is asked when it changed."""
    version = version_of(details)
    if not version:
        with suppress(Exception):  # most services do not support it
            version = f"modified={file_system.modified(path).isoformat()}"
    return version


TRY_AGAIN = "try again, or copy the file to a local disk"


def cannot_be_opened(name: str, error: BaseException) -> UnreadableInputError:
    """The error for a file or folder that fsspec, or the client of its service, cannot open."""
    return UnreadableInputError(f"{name}: cannot be opened: {reason_for(error)}; {_advice(error)}")


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


def reason_for(error: BaseException) -> str:
    """Returns the reason for a failure in one line, preferring the client's error to fsspec's."""
    cause = _causes(error)[-1] if isinstance(error, FileNotFoundError) else error
    status = getattr(cause, "status", None)
    if isinstance(status, int):
        return f"the server responded {status} {getattr(cause, 'message', '')}".strip()
    if isinstance(cause, FileNotFoundError):
        return "no such file"
    text = " ".join(str(cause).split())
    if isinstance(cause, ImportError | ValueError) and text:
        return text
    return f"{type(cause).__name__}: {text}"


def _advice(error: BaseException) -> str:
    status = _status(error)
    causes = _causes(error)
    if status in (401, 403):
        return "configure the credentials of the service (fsspec configuration)"
    if status in (404, 410) or isinstance(causes[-1], FileNotFoundError | ValueError):
        return "check the address"
    if isinstance(error, ImportError):
        return "pip install it, or copy the file to a local disk and open that"
    return f"check the address and the network, {TRY_AGAIN}"


SILENCE_VARIABLE = "STEPSCOPE_REMOTE_TIMEOUT"
TOTAL_VARIABLE = "STEPSCOPE_REMOTE_TOTAL"
_SILENCE_SECONDS = 120.0
_TOTAL_SECONDS = 3600.0


def silence_seconds() -> float:
    """Returns how long a server may send nothing, or next to nothing."""
    return _seconds(SILENCE_VARIABLE, _SILENCE_SECONDS)


def total_seconds() -> float:
    """Returns how long reading one file or one run may take."""
    return _seconds(TOTAL_VARIABLE, _TOTAL_SECONDS)


class Deadline:
    """The end of the time for one file or one run, from now on."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seconds = total_seconds()
        self._end = time.monotonic() + self._seconds

    def check(self) -> None:
        """Does nothing until the time is over."""
        if time.monotonic() > self._end:
            raise UnreadableInputError(
                f"{self._name}: not complete after {self._seconds:g} s; copy it to a local disk"
                f" ({TOTAL_VARIABLE}=SECONDS raises the limit)"
            )


def _seconds(variable: str, default: float) -> float:
    given = os.environ.get(variable)
    if given is None:
        return default
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{variable}={given} is not a positive number of seconds")
    return seconds
