"""Opens any trace: detects its format from its content and reads it with the matching reader."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from stepscope.errors import UsageError
from stepscope.trace.model import Trace
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content
from stepscope.trace.source.opening import Location, Source, open_source
from stepscope.trace.source.progress import Progress
from stepscope.trace.source.remote import RemoteFile, find_remote
from stepscope.trace.store.files import find_store
from stepscope.trace.store.origin import (
    Origin,
    origin_of_file,
    origin_of_remote,
    origin_of_stream,
)

STORE_ABOVE_BYTES = 200_000_000
"""Traces larger than this go through the store, and compressed ones that probably are."""
STREAM_STORE_ABOVE_BYTES = 20_000_000
"""Streams of unknown size go through the store when they hold more than this, uncompressed."""
REMOTE_STORE_ABOVE_BYTES = 1_000_000
"""Remote traces larger than this (as stored) go through the store, to be fetched only once."""

_LOG = logging.getLogger(__name__)


def load(location: Location, *, store: bool | Literal["auto"] = "auto") -> Trace:
    """Reads a trace of any supported format.

    Args:
        location: A path, an fsspec URL, the result of `fsspec.open`, or a binary stream.
        store: Whether to read through the store (see `stepscope.trace.store`), which bounds memory
            use and lets the trace open instantly next time. "auto" uses it for Chrome traces that
            are large (`STORE_ABOVE_BYTES`) or remote. Streams, and remote files without a version,
            get a temporary store that is removed when the process exits. False keeps everything in
            memory.

    Raises:
        UnreadableInputError: The trace cannot be read. The message says why and what to do.
        UsageError: `store=True` was given for a format that cannot be stored.
    """
    remote = find_remote(location)
    if isinstance(remote, Path):
        location, remote = remote, None
    origin = None
    if remote is not None and store is not False:
        if store is True or _is_worth_keeping(remote):
            origin = origin_of_remote(remote)
        found = find_store(origin) if origin is not None else None
        if found is not None:
            return Trace.from_store(found, remote.name)
    with open_source(remote or location) as source:
        if source.path is not None and store is not False:
            origin = origin_of_file(source.path)
            found = find_store(origin)
            if found is not None:
                return Trace.from_store(found, str(source.path))
        progress = Progress(source.name, source.size_bytes)
        try:
            return _read(source, origin, store, progress)
        finally:
            progress.close()


def _is_worth_keeping(remote: RemoteFile) -> bool:
    """Whether a remote file gets a store: not if it is tiny, or if its version is unknown."""
    is_large = remote.size_bytes is None or remote.size_bytes > REMOTE_STORE_ABOVE_BYTES
    if is_large and not remote.version:
        _LOG.warning(
            "%s: the server reports neither a version nor a modification time, so the trace is read"
            " again each time; copy it to a local disk to open it faster",
            remote.name,
        )
    return is_large and bool(remote.version)


def _read(
    source: Source, origin: Origin | None, store: bool | Literal["auto"], progress: Progress
) -> Trace:
    # A stored trace opens without the readers.
    from stepscope.trace.arrays.kept_arrays import KEEPER
    from stepscope.trace.formats.registry import format_of
    from stepscope.trace.formats.trace_format import Input
    from stepscope.trace.store.writer import StoreWriter

    problems = Problems()
    content = source.blocks(problems, progress=progress.advance)
    trace_format = format_of(source.name, content.peek())
    opened = Input(
        name=source.name,
        plain_file=None if source.is_compressed else source.path,
        content=content,
        problems=problems,
    )
    if trace_format.stream is None:
        if store is True:
            raise UsageError(f"{source.name}: only Chrome traces can be stored; use store=False")
    elif store is True or (store == "auto" and _is_large(source, content, origin, progress)):
        with StoreWriter(origin or origin_of_stream(source.name)) as writer:
            directory = writer.finish(trace_format.stream(opened, writer.add))
        KEEPER.drop_released()
        return Trace.from_store(directory, source.name)
    return Trace.from_tables(trace_format.read(opened), source.name)


def _is_large(source: Source, content: Content, origin: Origin | None, progress: Progress) -> bool:
    if source.path is None and origin is not None:  # remote and worth keeping
        return True
    if source.size_bytes is None:
        return not content.look_ahead(STREAM_STORE_ABOVE_BYTES)
    if not source.is_compressed:
        return source.size_bytes > STORE_ABOVE_BYTES
    if source.size_bytes > STORE_ABOVE_BYTES // 10:
        return True
    if content.look_ahead(STREAM_STORE_ABOVE_BYTES):
        return False
    # As densely packed as its beginning.
    return STREAM_STORE_ABOVE_BYTES * source.size_bytes > STORE_ABOVE_BYTES * progress.done_bytes
