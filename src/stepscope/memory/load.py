"""Opens a snapshot: finds out by its content what it is, and reads it safely."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from stepscope.errors import UnreadableInputError
from stepscope.memory.model import Snapshot
from stepscope.memory.reading.content import read_content
from stepscope.memory.reading.parse import parse
from stepscope.memory.reading.tables import Tables, tables_of
from stepscope.memory.store import find_store, open_store, write_store
from stepscope.trace.source.opening import Location, Source, open_source
from stepscope.trace.source.progress import Progress
from stepscope.trace.source.remote import find_remote
from stepscope.trace.store.origin import Origin, origin_of_file, origin_of_remote

STORE_ABOVE_BYTES = 100_000_000
"""Above this, unpacked, a snapshot is kept in a store."""


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
        tables, size = _read(source)
    if origin is not None and (store is True or size > STORE_ABOVE_BYTES):
        place = write_store(tables, origin)
        kept = None if place is None else open_store(place, source.name)
        if kept is not None:
            return kept
    return _in_memory(tables, source.name)


def _from_store(origin: Origin, name: str) -> Snapshot | None:
    place = find_store(origin)
    return None if place is None else open_store(place, name)


def _read(source: Source) -> tuple[Tables, int]:
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


def _in_memory(tables: Tables, name: str) -> Snapshot:
    return Snapshot(
        path=name,
        events=tables.events.lazy(),
        segments=tables.segments,
        blocks=tables.blocks,
        frames=tables.frames,
        stacks=tables.stacks,
        pools=tables.pools,
        texts=tables.texts,
        annotations=tables.annotations,
        problems=tables.problems,
        settings=tables.settings,
    )
