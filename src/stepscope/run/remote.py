"""Runs at fsspec URLs: fetches what is needed to read them, once."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import orjson

from stepscope.errors import UnreadableInputError
from stepscope.run.discover import MOST_ENTRIES
from stepscope.run.files import replacing
from stepscope.run.layout import RUN_FILE
from stepscope.run.timeouts import Deadline, silence_seconds, total_seconds
from stepscope.run.user_cache import user_cache

_CONNECT_SECONDS = 30
_MOST_LEVELS = 8  # of folders; a run has three
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_TRACE = re.compile(r"(.*\.)?trace\.json(\.gz|\.zst)?")
_PACKAGES = {
    "http": "'stepscope[http]'",
    "https": "'stepscope[http]'",
    "s3": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "hf": "huggingface_hub",
}
"""Scheme of a URL to the package that fsspec needs for it."""
_VERSION_KEYS = frozenset(
    {
        "etag", "md5", "md5hash", "contentmd5", "digest", "checksum", "crc32c", "sha", "sha256",
        "generation", "versionid", "lastmodified", "mtime", "modified", "modifiedat",
        "modifiedtime", "timemodified", "updated",
    }
)  # fmt: skip
"""Keys of versions without case and punctuation, which differ between services."""
_NEEDED = re.compile(_TRACE.pattern + r"|(run|manifest|window)\.json|.*\.jsonl|.*\.csv")


def is_url(text: str) -> bool:
    """Whether a text is an fsspec URL such as `s3://bucket/run`, not a path."""
    return _URL.match(text) is not None


def how_to_install(url: str) -> str:
    """The command that installs what a URL's service needs; empty if unknown."""
    package = _PACKAGES.get(url.partition("://")[0].rpartition("::")[2])
    return f"pip install {package}" if package else ""


def redacted(url: str) -> str:
    """Returns a URL without user, password and query, safe to show and store."""
    if "::" in url or "://" not in url:
        return url.partition("?")[0]
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0]
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def http_options(url: str) -> dict[str, Any]:
    """Options of fsspec for a URL over HTTP: the timeouts, and content as it is stored.

    Raises:
        UnreadableInputError: The package that it needs is missing.
    """
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


def fetch_run(url: str) -> Path:
    """Copy the files that reports need to the user's cache, unless traces are already there.

    Snapshots, tables and pictures are not copied.

    Returns:
        The local copy.

    Raises:
        UnreadableInputError: There is no run, or it cannot be reached; the message says why.
    """
    from fsspec.core import url_to_fs

    deadline = Deadline(redacted(url))
    try:
        file_system, root = url_to_fs(url, **http_options(url))
        root = _newest_run(file_system, root.rstrip("/"), deadline)
        found = _files_below(file_system, root, deadline)
    except UnreadableInputError:
        raise
    except ImportError as error:
        remedy = how_to_install(url) or "install it"
        raise UnreadableInputError(f"{url}: a package is missing: {remedy}") from error
    except Exception as error:
        raise UnreadableInputError(f"{url}: {type(error).__name__}: {error}") from error
    named = hashlib.blake2b(f"{url.partition('://')[0]} {root}".encode(), digest_size=8).hexdigest()
    home = _cache() / named / (Path(root).name or "run")
    fetched = 0
    for remote, details in found.items():
        target = home / remote[len(root) :].lstrip("/")
        # Names are untrusted: none may lead out of the copy.
        if not target.resolve().is_relative_to(home.resolve()):
            continue
        if not _NEEDED.fullmatch(target.name):
            continue
        fetched += 1
        if _is_there(target, details):
            continue
        deadline.check()
        try:
            with replacing(target) as temporary:
                file_system.get_file(remote, str(temporary))
        except Exception as error:
            raise UnreadableInputError(
                f"{remote}: cannot be fetched: {type(error).__name__}: {error}"
            ) from error
        if _TRACE.fullmatch(target.name):
            _marker(target).write_text(_word(details))
    if not fetched:
        raise UnreadableInputError(f"{url}: found no run (run.json, rank*/manifest.json)")
    return home


def _files_below(file_system: Any, root: str, deadline: Deadline) -> dict[str, Any]:
    """The files of a folder with their details, as fsspec reports them.

    Raises:
        UnreadableInputError: There are too many, or listing them takes too long.
    """
    found: dict[str, Any] = {}
    if not is_http(file_system):  # other services list all files at once, which is much faster
        found.update(file_system.find(root, detail=True, maxdepth=_MOST_LEVELS))
        return found
    count = 0
    walk = file_system.walk(root, maxdepth=_MOST_LEVELS, detail=True)
    for _, folders, files in walk:
        deadline.check()
        count += len(folders) + len(files)
        if count > MOST_ENTRIES:
            raise UnreadableInputError(
                f"{redacted(root)}: more than {MOST_ENTRIES:,} files and folders: name the folder"
                " of one run"
            )
        found |= {str(details["name"]): details for details in files.values()}
    return found


def _newest_run(file_system: Any, root: str, deadline: Deadline) -> str:
    """The folder itself, or the newest run in it."""
    inside = [str(entry["name"]).rstrip("/") for entry in file_system.ls(root, detail=True)]
    if any(re.fullmatch(r"run\.json|rank\d{5,}", name.rpartition("/")[2]) for name in inside):
        return root
    runs = []
    for name in inside:
        deadline.check()
        try:
            job = orjson.loads(file_system.cat_file(f"{name}/{RUN_FILE}"))
        except (OSError, ValueError):
            continue
        if isinstance(job, dict) and isinstance(job.get("created_ns"), int):
            runs.append((job["created_ns"], name))
    return max(runs)[1] if runs else root


def _is_there(target: Path, details: dict[str, Any]) -> bool:
    """Whether the current trace was fetched before. Other files are small and may have changed."""
    try:
        known = _marker(target).read_text()
    except OSError:
        return False
    return target.is_file() and known == _word(details)


def _marker(target: Path) -> Path:
    return target.with_name(f".{target.name}.fetched")


def version_of(details: dict[str, Any]) -> str:
    """What distinguishes versions of a remote file that have the same size.

    Args:
        details: The result of fsspec's `info` for the file.

    Returns:
        What the service reports: digests, version numbers, modification times; empty if it
        reports none of them.
    """
    said = {
        re.sub(r"[^a-z0-9]", "", key.lower()): value
        for key, value in details.items()
        if value not in (None, "", 0)
    }
    return " ".join(f"{key}={said[key]}" for key in sorted(said.keys() & _VERSION_KEYS))


def _word(details: dict[str, Any]) -> str:
    """The note that is kept next to a fetched trace."""
    return f"size={details.get('size')} created={details.get('created')} {version_of(details)}"


def _cache() -> Path:
    given = os.environ.get("STEPSCOPE_CACHE")
    if given:
        return Path(given) / "runs"
    return user_cache() / "runs"
