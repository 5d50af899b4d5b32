"""Runs and traces at fsspec URLs: copies what is needed to read them, once."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from stepscope.errors import UnreadableInputError
from stepscope.opening.discover import MOST_ENTRIES, TRACE_NAMES, is_trace_name
from stepscope.opening.remote import (
    Deadline,
    cannot_be_opened,
    http_options,
    is_http,
    known_version,
    redacted,
    version_of,
)
from stepscope.opening.user_cache import user_cache
from stepscope.run.figures import describe_error
from stepscope.run.files import replacing
from stepscope.run.layout import RUN_FILE
from stepscope.run.side_json import parse_json

_MOST_LEVELS = 8  # of folders; a run has three
_RECORDS = re.compile(r"(run|manifest|window)\.json|.*\.jsonl|.*\.csv")
"""Names of small files, which may change while a training runs."""
_PAGE = "text/html"
"""The type of what servers send for a folder: a page with links."""


def fetch_run(url: str) -> Path:
    """Copy the files that reports need to the user's cache, unless traces are already there.

    A URL of one file stands for that file, whatever its name. Of a folder, snapshots, tables and
    pictures are not copied. What is on this machine is not copied at all.

    Raises:
        UnreadableInputError: There is no run and no trace, or it cannot be reached; the message
            says why.
    """
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    name = redacted(url)
    deadline = Deadline(name)
    try:
        file_system, root = url_to_fs(url, **http_options(url))
        if isinstance(file_system, LocalFileSystem):
            return Path(root)
        root, found = _what_is_there(file_system, root, url.endswith("/"), deadline)
    except UnreadableInputError:
        raise
    except Exception as error:
        raise cannot_be_opened(name, error) from error
    named = hashlib.blake2b(f"{url.partition('://')[0]} {root}".encode(), digest_size=8).hexdigest()
    given = os.environ.get("STEPSCOPE_CACHE")
    name_of_root = Path(root.partition("?")[0]).name or "run"
    home = (Path(given) if given else user_cache()) / "runs" / named / name_of_root
    fetched = 0
    for remote, details in found.items():
        target = home / remote[len(root) :].lstrip("/")
        # Names are untrusted: none may lead out of the copy.
        if not target.resolve().is_relative_to(home.resolve()):
            continue
        is_trace = remote == root or is_trace_name(target.name)
        if not is_trace and not _RECORDS.fullmatch(target.name):
            continue
        fetched += 1
        version = _version(file_system, remote, details) if is_trace else ""
        marker = target.with_name(f".{target.name}.fetched")
        is_there = target.is_file() and marker.is_file()
        if version and is_there and marker.read_text("utf-8", errors="replace") == version:
            continue
        deadline.check()
        try:
            with replacing(target) as temporary:
                file_system.get_file(remote, str(temporary))
        except Exception as error:
            raise UnreadableInputError(
                f"{redacted(remote)}: cannot be fetched: {describe_error(error)}"
            ) from error
        if is_trace:
            marker.write_text(version, encoding="utf-8")
    if not fetched:
        raise UnreadableInputError(
            f"{name}: found no run (run.json, rank*/manifest.json) and no trace ({TRACE_NAMES})"
        )
    return home


def _what_is_there(
    file_system: Any, root: str, is_folder: bool, deadline: Deadline
) -> tuple[str, dict[str, Any]]:
    """The file or folder to read, and its files with their details.

    Of a folder that holds runs, it is the newest of them.
    """
    if not is_folder:
        details = file_system.info(root)
        is_folder = details.get("type") == "directory" or details.get("mimetype") == _PAGE
        if not is_folder:
            return root, {root: details}
    root = _newest_run(file_system, root.rstrip("/"), deadline)
    return root, _files_below(file_system, root, deadline)


def _files_below(file_system: Any, root: str, deadline: Deadline) -> dict[str, Any]:
    """The files of a folder with their details, as fsspec reports them."""
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
        if is_trace_name(name.rpartition("/")[2]):
            continue
        deadline.check()
        try:
            job = parse_json(file_system.cat_file(f"{name}/{RUN_FILE}"))
        except (OSError, ValueError):
            continue
        if isinstance(job, dict) and isinstance(job.get("created_ns"), int):
            runs.append((job["created_ns"], name))
    return max(runs)[1] if runs else root


def _version(file_system: Any, remote: str, details: dict[str, Any]) -> str:
    """What distinguishes this content of a trace from others; empty if the service says nothing."""
    if is_http(file_system) and not version_of(details):  # listings say nothing about files
        details = file_system.info(remote)
    known = known_version(file_system, remote, details)
    return f"size={details.get('size')} {known}" if known else ""
