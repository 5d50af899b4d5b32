"""Opens any trace: finds out what it is, by content, and reads it with the reader for that."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Literal

from stepscope.errors import UsageError
from stepscope.trace.formats.registry import FORMATS, format_of
from stepscope.trace.formats.trace_format import Input
from stepscope.trace.model import Trace
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content
from stepscope.trace.source.opening import Location, Source, open_source
from stepscope.trace.source.progress import Progress
from stepscope.trace.source.remote import RemoteFile, find_remote
from stepscope.trace.store.files import find_store, open_store
from stepscope.trace.store.origin import (
    Origin,
    origin_of_file,
    origin_of_remote,
    origin_of_stream,
)
from stepscope.trace.store.writer import StoreWriter

STORE_ABOVE_BYTES = 200_000_000
"""Above this, a trace goes through the store; compressed ones above a tenth of it."""
STREAM_STORE_ABOVE_BYTES = 20_000_000
"""Above this (uncompressed), a stream of unknown size goes through the store."""
REMOTE_STORE_ABOVE_BYTES = 1_000_000
"""Above this (as stored), a remote trace goes through the store: it is not fetched twice."""

_LOG = logging.getLogger(__name__)


def load(location: Location, *, store: bool | Literal["auto"] = "auto") -> Trace:
    """Reads a trace of any known format.

    Args:
        location: A path, an fsspec URL, what `fsspec.open` returns, or a binary stream.
        store: Whether to go through the store (see `stepscope.trace.store`), so that memory stays
            bounded and the next time opens at once: "auto" does for Chrome traces that are large
            (`STORE_ABOVE_BYTES`) or remote. A stream, and a remote file whose service tells no
            version, get a store that goes when the process ends. With False, everything is in
            memory.

    Raises:
        UnreadableInputError: It cannot be read; says why and what to do.
        UsageError: A store was asked for something that is no Chrome trace.
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
            return Trace.from_store(open_store(found), remote.name)
    with open_source(remote or location) as source:
        if source.path is not None and store is not False:
            origin = origin_of_file(source.path)
            found = find_store(origin)
            if found is not None:
                return Trace.from_store(open_store(found), str(source.path))
        progress = Progress(source.name, source.size_bytes)
        try:
            return _read(source, origin, store, progress)
        finally:
            progress.close()


def _is_worth_keeping(remote: RemoteFile) -> bool:
    """Whether a remote file is stored: what is tiny, or told apart from nothing, is not."""
    is_large = remote.size_bytes is None or remote.size_bytes > REMOTE_STORE_ABOVE_BYTES
    if is_large and not remote.version:
        _LOG.warning(
            "%s: its server tells neither a version nor a time of change, so it is read anew each"
            " time; copy it to a local disk to open it at once",
            remote.name,
        )
    return is_large and bool(remote.version)


def _read(
    source: Source, origin: Origin | None, store: bool | Literal["auto"], progress: Progress
) -> Trace:
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
            stored = " and ".join(known.plural for known in FORMATS if known.stream is not None)
            raise UsageError(f"{source.name}: a store is only made of {stored}")
    elif store is True or (store == "auto" and _is_large(source, content, origin)):
        with StoreWriter(origin or origin_of_stream(source.name)) as writer:
            directory = writer.finish(trace_format.stream(opened, writer.add))
        return Trace.from_store(open_store(directory), source.name)
    return Trace.from_tables(trace_format.read(opened), source.name)


def _is_large(source: Source, content: Content, origin: Origin | None) -> bool:
    """Whether a trace goes through the store unless asked otherwise."""
    if source.path is None and origin is not None:  # remote, and worth keeping
        return True
    if source.size_bytes is None:
        return not content.look_ahead(STREAM_STORE_ABOVE_BYTES)
    above = STORE_ABOVE_BYTES // 10 if source.is_compressed else STORE_ABOVE_BYTES
    return source.size_bytes > above
