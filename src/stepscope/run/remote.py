"""Runs at fsspec URLs: fetches what is needed to read them, once."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import orjson

from stepscope.errors import UnreadableInputError
from stepscope.run.files import replacing
from stepscope.run.layout import RUN_FILE

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

    try:
        file_system, root = url_to_fs(url)
        root = _newest_run(file_system, root.rstrip("/"))
        found: dict[str, Any] = file_system.find(root, detail=True)
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


def _newest_run(file_system: Any, root: str) -> str:
    """The folder itself, or the newest run in it."""
    inside = [str(entry["name"]).rstrip("/") for entry in file_system.ls(root, detail=True)]
    if any(re.fullmatch(r"run\.json|rank\d{5,}", name.rpartition("/")[2]) for name in inside):
        return root
    runs = []
    for name in inside:
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
    from platformdirs import user_cache_path

    return user_cache_path("stepscope") / "runs"
