"""Moves the files of an earlier recording out of the way of a new one with the same names.

Some guides promise fixed names. A recording that makes fewer files than the one before would leave
the rest of those beside its own.
"""

from __future__ import annotations

import datetime
import glob
from collections.abc import Callable, Iterator
from pathlib import Path

from stepscope.adapters.options.layouts import FSDP_NAMES, Destination, fsdp_folder

EARLIER = "earlier"
"""Folder that the files are moved to, beside the new ones."""
_MOST_RANKS = 4096

Patterns = Callable[[Destination], Iterator[tuple[Path, str]]]
"""The folders and the names that a layout may have written for this rank, as glob patterns. The
first rank also lists those of ranks that the job does not have."""


def _fsdp_qlora(destination: Destination) -> Iterator[tuple[Path, str]]:
    folder, stem = fsdp_folder(destination)
    folders = [folder]
    if destination.identity.rank == 0:
        name, _, _ = folder.name.rpartition("-")
        for other in folder.parent.glob(f"{glob.escape(name)}-*"):
            number = other.name.removeprefix(f"{name}-")
            if number.isdecimal() and int(number) >= destination.identity.world_size:
                folders.append(other)
    for one in folders:
        for name in FSDP_NAMES.values():
            yield one, f"{glob.escape(stem)}-{name}.*"


def _recipe(destination: Destination) -> Iterator[tuple[Path, str]]:
    for name in _by_rank(destination, "trace"):
        yield destination.root, f"{name}.json*"


def _sfm(destination: Destination) -> Iterator[tuple[Path, str]]:
    identity = destination.identity
    yield destination.root, f"trace-rank{identity.rank}-window*.json*"
    if identity.rank == 0:
        for path in destination.root.glob("trace-rank*-window*.json*"):
            number = path.name.removeprefix("trace-rank").partition("-")[0]
            if number.isdecimal() and int(number) >= identity.world_size:
                yield destination.root, glob.escape(path.name)
    for stem, suffix in (("profiler_list", ".dat"), ("profiler_ds", ".txt")):
        for name in _by_rank(destination, stem):
            yield destination.root, f"{name}{suffix}"


def _by_rank(destination: Destination, stem: str) -> Iterator[str]:
    yield destination.by_rank(stem)
    if destination.identity.rank == 0:
        for path in destination.root.glob(f"{stem}-rank*"):
            number = path.name.removeprefix(f"{stem}-rank").partition(".")[0]
            if number.isdecimal() and int(number) >= destination.identity.world_size:
                yield f"{stem}-rank{number}"


_PATTERNS: dict[str, Patterns] = {"fsdp-qlora": _fsdp_qlora, "recipe": _recipe, "sfm": _sfm}


def move_earlier(layout: str, destination: Destination) -> list[Path]:
    """Move files that an earlier recording left under a layout's names.

    Each goes to `earlier/{time}/` in its folder, where the time is that of the newest of them.

    Returns:
        The folders that they were moved to.

    Raises:
        OSError: A file cannot be moved.
    """
    patterns = _PATTERNS.get(layout)
    found: dict[Path, set[Path]] = {}
    for folder, pattern in patterns(destination) if patterns is not None else ():
        found.setdefault(folder, set()).update(
            path for path in folder.glob(pattern) if path.is_file()
        )
    targets = []
    for folder, paths in found.items():
        if paths:
            targets.append(_target(folder, paths))
            for path in paths:
                path.replace(targets[-1] / path.name)
    return targets


def _target(folder: Path, paths: set[Path]) -> Path:
    newest_s = max(path.stat().st_mtime for path in paths)
    time = datetime.datetime.fromtimestamp(newest_s, datetime.timezone.utc)
    name = f"{time:%Y%m%dT%H%M%SZ}"
    for number in range(1, _MOST_RANKS):
        target = folder / EARLIER / (name if number == 1 else f"{name}-{number}")
        try:
            target.mkdir(parents=True)
        except FileExistsError:
            continue
        return target
    raise FileExistsError(f"{folder / EARLIER / name}: too many folders have this name")
