"""Which files are memory snapshots and timelines, without reading them, and without polars."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.run.files import exists, is_regular
from stepscope.trace.formats.not_traces import is_memory_snapshot, is_memory_timeline
from stepscope.trace.source.opening import beginning_of

BEGINNING_BYTES = 16 * 1024
"""How much of a file shows what it is."""
PAGE = re.compile(rb"<title>(?:GPU Memory Timeline HTML|Memory over time)</title>")
_OF_TRACES = (".json", ".gz", ".zst", ".sqlite", ".nsys-rep", ".pftrace", ".perfetto-trace")


def is_snapshot_file(path: str) -> bool:
    """Whether a local file is a snapshot, by its content, whatever it is called."""
    place = Path(path)
    return (
        exists(place)
        and place.is_file()
        and is_memory_snapshot(beginning_of(place, BEGINNING_BYTES))
    )


def snapshots_in(directory: Path) -> list[Path]:
    """The snapshots in a directory, the oldest first."""
    if not directory.is_dir():
        return []
    files = [
        file for file in directory.iterdir() if is_regular(file) and is_snapshot_file(str(file))
    ]
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, file.name))


def snapshots_of(path: str) -> list[str]:
    """The snapshots that a path stands for by itself, the oldest first.

    That is a snapshot, or a directory with snapshots and no other file of a kind that traces and
    runs consist of.
    """
    if is_snapshot_file(path):
        return [path]
    place = Path(path)
    if not exists(place) or not place.is_dir():
        return []
    for file in place.iterdir():
        if file.name.endswith(_OF_TRACES) and not is_snapshot_file(str(file)):
            return []
    return [str(file) for file in snapshots_in(place)]


def is_timeline_file(path: str) -> bool:
    """Whether a local file is a memory timeline, or the page of one, by its content."""
    if not Path(path).is_file():
        return False
    beginning = beginning_of(Path(path), BEGINNING_BYTES)
    return is_memory_timeline(beginning) or PAGE.search(beginning) is not None
