"""Opens a snapshot: finds out by its content what it is, reads it safely, and keeps large ones.

A large snapshot `snapshot.pickle` gets a store, `snapshot.pickle.stepscope/`: one Parquet file for
each table, the settings, and `manifest.json`. Where the snapshot's own directory cannot be written
to, and for a remote snapshot, the store goes to the user's cache directory. It is valid for one
content and one version of the schema, is written under a temporary name, and is renamed when it is
complete. Stores of snapshots and of traces are listed and removed alike (`stepscope cache`).
"""

from __future__ import annotations

import contextlib
import functools
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
from stepscope.memory.schema import SCHEMA_VERSION, TABLES, Snapshot
from stepscope.trace.arrays.memory_reuse import return_freed_memory
from stepscope.trace.problems import Problems as SourceProblems
from stepscope.trace.source.content import Content
from stepscope.trace.source.opening import Location, Source, open_source
from stepscope.trace.source.progress import Progress
from stepscope.trace.source.remote import find_remote
from stepscope.trace.store.code import code_digest
from stepscope.trace.store.contents import contents_of, is_intact, is_own_directory
from stepscope.trace.store.directory import MANIFEST, read_manifest, write_whole
from stepscope.trace.store.origin import (
    Origin,
    cache_directory,
    origin_of_file,
    origin_of_remote,
)

STORE_ABOVE_BYTES = 100_000_000
"""Above this, unpacked, a snapshot is kept in a store."""
_KIND = "snapshot"
_READERS = "stepscope.memory.reading"
"""The package whose code decides what a store holds."""
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
        place = write_store(snapshot, origin)
        kept = None if place is None else open_store(place, source.name)
        if kept is not None:
            return kept
    return snapshot


def _from_store(origin: Origin, name: str) -> Snapshot | None:
    place = find_store(origin)
    return None if place is None else open_store(place, name)


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


def find_store(origin: Origin) -> Path | None:
    """The valid store of a snapshot; None where there is none."""
    return next((place for place in origin.paths if _is_valid(place, origin)), None)


def open_store(store: Path, name: str) -> Snapshot | None:
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


def write_store(snapshot: Snapshot, origin: Origin) -> Path | None:
    """Keeps a snapshot, whole or not at all.

    A disk that is full or cannot be written to is no error: the snapshot is read again next time.

    Returns:
        The store's directory; None where it could not be kept.
    """
    if origin.key is None:
        return None
    write = functools.partial(_write, snapshot=snapshot, origin=origin)
    for number, place in enumerate(origin.paths):
        if number or place.parent == cache_directory():
            with contextlib.suppress(OSError):
                place.parent.mkdir(parents=True, exist_ok=True)
        if write_whole(place, write, functools.partial(_is_valid, place, origin)):
            return place
    return None


def _write(directory: Path, snapshot: Snapshot, origin: Origin) -> None:
    rows = {}
    for table in TABLES:
        frame: pl.DataFrame = getattr(snapshot, table).lazy().collect()
        frame.write_parquet(_file(directory, table), compression="zstd", compression_level=1)
        rows[table] = len(frame)
    (directory / _SETTINGS).write_text(json.dumps(dict(snapshot.settings)) + "\n", "utf-8")
    manifest = {
        "format": "stepscope store",
        "kind": _KIND,
        "source": origin.name,
        "key": None if origin.key is None else asdict(origin.key),
        "snapshot_code": code_digest(_READERS),
        "schema_version": SCHEMA_VERSION,
        "rows": rows,
        "files": contents_of(directory, _NAMES),
    }
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", "utf-8")


def _file(directory: Path, table: str) -> Path:
    return directory / f"{table}.parquet"


def _is_valid(place: Path, origin: Origin) -> bool:
    manifest = read_manifest(place)
    code = code_digest(_READERS)
    return (
        origin.key is not None
        and is_own_directory(place)
        and code is not None
        and manifest.get("kind") == _KIND
        and manifest.get("key") == asdict(origin.key)
        and manifest.get("snapshot_code") == code
        and manifest.get("schema_version") == SCHEMA_VERSION
        and is_intact(place, manifest.get("files"), _NAMES)
    )


_FIRST_BYTES = 16 * 1024 * 1024
_FREE_BYTES = 256 * 1024**2
_MOST_RATIO = 40
"""Unpacked bytes for each packed byte, above `_FREE_BYTES`; recorders' files pack about 10 to 1."""


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
    packed = source.is_compressed
    size = None if packed else source.size_bytes
    limit = _FREE_BYTES
    if source.size_bytes is not None:
        limit = max(limit, source.size_bytes * (_MOST_RATIO if packed else 2))
    elif not packed:
        limit = 2**62
    data = _read_all(source.name, content, size, limit)
    if problems:
        raise UnreadableInputError(
            f"{source.name}: the packed file is damaged or ends early; copy it again"
        )
    return data


def _read_all(name: str, content: Content, size: int | None, limit: int) -> npt.NDArray[np.uint8]:
    data = np.empty(_FIRST_BYTES if size is None else size + 1, np.uint8)
    used = 0
    while True:
        count = content.read_into(data.data[used:])
        used += count
        if used < len(data):
            return data[:used]
        if used > limit:
            raise UnreadableInputError(
                f"{name}: unpacks to more than {limit / 1e9:.1f} GB, far more than a recorder's "
                "file would; nothing was read"
            )
        grown = np.empty(2 * len(data), np.uint8)
        grown[:used] = data
        data = grown
