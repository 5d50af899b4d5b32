"""Which files are memory snapshots, without reading them, and without polars."""

from __future__ import annotations

from pathlib import Path

from stepscope.run.files import exists, is_regular
from stepscope.trace.formats.not_traces import is_memory_snapshot
from stepscope.trace.source.opening import beginning_of

BEGINNING_BYTES = 16 * 1024
"""How much of a file shows what it is."""
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
