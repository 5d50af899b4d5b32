"""Opens a snapshot: finds out by its content what it is, reads it safely, and keeps large ones.

A large snapshot `snapshot.pickle` gets a store, `snapshot.pickle.stepscope/`: one Parquet file for
each table, the settings, and `manifest.json`. Where the snapshot's own directory cannot be written
to, and for a remote snapshot, the store goes to the user's cache directory. It is valid for one
content and for the code that read it, is written under a temporary name, and is renamed when it is
complete. Stores of snapshots and of traces are listed and removed alike (`stepscope cache`).
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.errors import UnreadableInputError
from stepscope.memory.reading.parse import parse
from stepscope.memory.reading.tables import tables_of
from stepscope.memory.schema import TABLES, Snapshot
from stepscope.trace.arrays.memory_reuse import return_freed_memory
from stepscope.trace.problems import Problems as SourceProblems
from stepscope.trace.source.opening import Location, Source, open_source
from stepscope.trace.source.progress import Progress
from stepscope.trace.source.remote import find_remote
from stepscope.trace.store.code import code_digest
from stepscope.trace.store.directory import StoreFolder
from stepscope.trace.store.origin import (
    Origin,
    cache_directory,
    origin_of_file,
    origin_of_remote,
)

STORE_ABOVE_BYTES = 100_000_000
"""Above this, unpacked, a snapshot is kept in a store."""
_SETTINGS = "settings.json"
_NAMES = (*(f"{table}.parquet" for table in TABLES), _SETTINGS)


def load_snapshot(location: Location, *, store: bool | Literal["auto"] = "auto") -> Snapshot:
    """Reads a snapshot of torch's memory recorder.

    Pickles of protocol 2 to 5 and JSON are read, packed with gzip or zstd or not. Nothing in a
    file is executed, and it can make reading take neither more time nor more memory than a few
    times what its size warrants.

    Args:
        location: A path, an fsspec URL, what `fsspec.open` returns, or a binary stream.
        store: Whether to keep the tables on disk, so that the next time opens at once: "auto" does
            for large files (`STORE_ABOVE_BYTES`). Streams are never kept.

    Raises:
        UnreadableInputError: It cannot be read; says why and what to do.
    """
    origin = None
    remote = find_remote(location)
    if isinstance(remote, Path):
        location = remote
    elif remote is not None and store is not False:
        origin = origin_of_remote(remote)
        kept = _from_store(origin, remote.name)
        if kept is not None:
            return kept
    with open_source(remote or location) as source:
        if source.path is not None and store is not False:
            origin = origin_of_file(source.path)
            kept = _from_store(origin, str(source.path))
            if kept is not None:
                return kept
        snapshot, size = _read(source)
    if size > STORE_ABOVE_BYTES:
        return_freed_memory()  # the file and its tree are gone, and nothing later is as large
    if origin is not None and (store is True or size > STORE_ABOVE_BYTES):
        return _keep(snapshot, origin) or snapshot
    return snapshot


def _read(source: Source) -> tuple[Snapshot, int]:
    # Each byte is read once, walked over twice, and counted once more for the tables.
    total = None if source.size_bytes is None or source.is_compressed else 4 * source.size_bytes
    progress = Progress(source.name, total)
    try:
        data = read_content(source, progress)
        if not len(data):
            raise UnreadableInputError(f"{source.name}: empty; the recorder wrote nothing")
        tree = parse(data, source.name, progress.advance)
        return tables_of(tree, source.name, progress.advance), len(data)
    finally:
        progress.close()


# -- stores


def _folders(origin: Origin) -> list[StoreFolder]:
    """Where a snapshot can be kept, the best place first; nowhere if it cannot be identified."""
    code = code_digest("stepscope.memory")
    if origin.key is None or code is None:
        return []
    identity = {"kind": "snapshot", "key": asdict(origin.key), "snapshot_code": code}
    about = {"format": "stepscope store", "source": origin.name}
    return [StoreFolder(place, _NAMES, identity, about) for place in origin.paths]


def _from_store(origin: Origin, name: str) -> Snapshot | None:
    folder = next((one for one in _folders(origin) if one.is_valid()), None)
    return None if folder is None else _open(folder.directory, name)


def _open(store: Path, name: str) -> Snapshot | None:
    """A snapshot from its store; None where that was removed or damaged meanwhile."""
    with contextlib.suppress(OSError):  # marks it as used; a store may be read-only
        os.utime(store)
    try:
        settings = json.loads((store / _SETTINGS).read_text("utf-8"))
        tables: dict[str, Any] = {
            table: pl.read_parquet(_file(store, table), glob=False)
            for table in TABLES
            if table != "events"
        }
        tables["events"] = pl.scan_parquet(_file(store, "events"), glob=False)
        tables["events"].collect_schema()
    except (OSError, ValueError, pl.exceptions.PolarsError):
        return None
    return Snapshot(path=name, **tables, settings=settings, store=store)


def _keep(snapshot: Snapshot, origin: Origin) -> Snapshot | None:
    """Keeps a snapshot, and opens it there; None where it cannot be kept."""

    def write(directory: Path) -> None:
        for table in TABLES:
            frame: pl.DataFrame = getattr(snapshot, table).lazy().collect()
            frame.write_parquet(_file(directory, table), compression="zstd", compression_level=1)
        (directory / _SETTINGS).write_text(json.dumps(dict(snapshot.settings)) + "\n", "utf-8")

    for number, folder in enumerate(_folders(origin)):
        parent = folder.directory.parent
        if number or parent == cache_directory():
            with contextlib.suppress(OSError):
                parent.mkdir(parents=True, exist_ok=True)
        if folder.keep(write):
            return _open(folder.directory, snapshot.path)
    return None


def _file(directory: Path, table: str) -> Path:
    return directory / f"{table}.parquet"


def read_content(source: Source, progress: Progress) -> npt.NDArray[np.uint8]:
    """Everything a source holds, unpacked.

    The content is copied, not mapped: a file that shrinks while it is read does no harm.

    Raises:
        UnreadableInputError: Reading or unpacking fails, or what is unpacked grows out of all
            proportion.
    """
    problems = SourceProblems()
    content = source.blocks(problems, progress=progress.advance)
    content.expect_no_events()
    data = bytearray()
    for piece in content:
        data += piece
    if problems:
        raise UnreadableInputError(
            f"{source.name}: the packed file is damaged or ends early; copy it again"
        )
    return np.frombuffer(data, np.uint8)
