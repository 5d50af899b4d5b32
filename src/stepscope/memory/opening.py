"""Opens what a path stands for as a snapshot: a file, or the newest of a run or directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from stepscope.errors import NothingFoundError, UnreadableInputError, UsageError
from stepscope.memory.categories.census import Census, census_path, read_census
from stepscope.memory.load import load_snapshot
from stepscope.memory.recognition import snapshots_in
from stepscope.memory.view import MemoryView
from stepscope.opening.reader import open_run
from stepscope.opening.remote import is_directory
from stepscope.run.files import exists
from stepscope.run.layout import SNAPSHOTS_DIRECTORY, RankLayout


def open_snapshot(path: str) -> MemoryView:
    """Reads a snapshot, with the censuses beside it."""
    beside = [] if "://" in path else census_beside(Path(path))
    found, remarks = read_censuses(beside)
    return MemoryView(load_snapshot(path), found, remarks)


def census_beside(path: Path) -> list[Path]:
    """The files of the census for a snapshot or a window's trace, the oldest first.

    They are named after the snapshot, or lie in the folder of the rank that recorded it.
    """
    own = census_path(path)
    if own.is_file():
        return [own]
    layout = RankLayout(path.absolute().parent.parent)
    return [place for place in layout.censuses if place.is_file()]


def read_censuses(paths: Sequence[Path]) -> tuple[Census | None, tuple[str, ...]]:
    """The censuses in several files, as one.

    Returns:
        The census, None without any that can be read; and why the others cannot.
    """
    read = [_census_or_reason(path) for path in paths]
    found = [one for one in read if isinstance(one, Census)]
    remarks = tuple(one for one in read if isinstance(one, str))
    if not found:
        return None, remarks
    sightings = pl.concat(census.sightings for census in found)
    return Census(sightings, sum(census.skipped_lines for census in found)), remarks


def _census_or_reason(path: Path) -> Census | str:
    try:
        return read_census(path)
    except UnreadableInputError as error:
        return str(error)


def find_snapshots(path: str, rank: int | None = None) -> list[str]:
    """The snapshots that a path stands for; the last is the one that is taken.

    Args:
        path: A file or a URL; a run directory, of which the newest snapshot of a rank is taken; or
            a directory with snapshots, of which the newest is.
        rank: The rank of a run; None: the first that has snapshots.

    Raises:
        UnreadableInputError: There is no snapshot.
        UsageError: The run has no such rank.
    """
    if "://" in path and not is_directory(path):
        return [path]
    place = Path(path)
    if exists(place) and place.is_file():
        return [path]
    if path == "-":
        raise UnreadableInputError(
            "-: snapshots are not read from standard input: save it to a file, and give its name"
        )
    if not exists(place) and "://" not in path:
        raise UnreadableInputError(f"{path}: no such file or directory")
    own = snapshots_in(place) or snapshots_in(place / SNAPSHOTS_DIRECTORY)
    if own:
        return [str(file) for file in own]
    try:
        run = open_run(path)
    except NothingFoundError as error:
        raise UnreadableInputError(
            f"{path}: found no memory snapshot, no run and no trace; "
            "torch.cuda.memory._dump_snapshot writes a snapshot"
        ) from error
    ranks = {one.rank: one for one in run.ranks}
    if rank is not None and rank not in ranks:
        raise UsageError(f"{path}: no rank {rank}; it has {', '.join(map(str, sorted(ranks)))}")
    # Of several ranks the first one's newest is taken.
    wanted = [number for number in sorted(ranks, reverse=True) if rank in (None, number)]
    found = [
        str(file)
        for number in wanted
        for file in snapshots_in(ranks[number].directory / SNAPSHOTS_DIRECTORY)
    ]
    if not found:
        raise UnreadableInputError(
            f"{path}: no memory snapshot; record with memory_history=True or "
            "memory_snapshot_at_end=True on a CUDA device"
        )
    return found
