"""Opens any trace: finds out what it is, by content, and reads it with the reader for that."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Literal

from stepscope.errors import UnreadableInputError, UsageError
from stepscope.trace.formats.chrome.document import ReadEvents, read_events_tolerantly
from stepscope.trace.formats.chrome.kineto import read_into, read_kineto_blocks
from stepscope.trace.model import Trace
from stepscope.trace.problems import Problems
from stepscope.trace.source.opening import SQLITE_MAGIC, Location, Source, open_source
from stepscope.trace.source.progress import Progress
from stepscope.trace.source.remote import RemoteFile, find_remote
from stepscope.trace.store.files import StoreWriter, find_store, open_store
from stepscope.trace.store.place import (
    Origin,
    origin_of_file,
    origin_of_remote,
    origin_of_stream,
)
from stepscope.trace.tables import Tables

COMPILED_ABOVE_BYTES = 20_000_000
"""Above this (uncompressed), the compiled scanner is worth loading."""
STORE_ABOVE_BYTES = 200_000_000
"""Above this, a trace goes through the store; compressed ones above a tenth of it. A stream of
unknown size does above `COMPILED_ABOVE_BYTES`."""
REMOTE_STORE_ABOVE_BYTES = 1_000_000
"""Above this (as stored), a remote trace goes through the store: it is not fetched twice."""

_LOG = logging.getLogger(__name__)


class Format(Enum):
    """What a file is, by its content."""

    CHROME = "chrome"
    """Kineto's or any other Chrome trace."""
    PYSPY = "py-spy"
    NSYS_SQLITE = "nsys-sqlite"
    NSYS_REPORT = "nsys-report"


_PYSPY_HEAD = re.compile(rb'^\s*\[\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)?"cat"\s*:\s*"py-spy"')


def format_of(source: Source, head: bytes) -> Format:
    """What a source holds.

    Args:
        source: For its raw first bytes and its name.
        head: The beginning of its uncompressed content.
    """
    if head.startswith(SQLITE_MAGIC):
        return Format.NSYS_SQLITE
    is_text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    if not is_text and source.name.endswith((".nsys-rep", ".qdrep")):
        return Format.NSYS_REPORT
    if _PYSPY_HEAD.match(head[:65536]):
        return Format.PYSPY
    return Format.CHROME


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
            return open_store(found, remote.name)
    with open_source(remote or location) as source:
        if source.path is not None and store is not False:
            origin = origin_of_file(source.path)
            found = find_store(origin)
            if found is not None:
                return open_store(found, str(source.path))
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
    first = next(content, b"")
    kind = format_of(source, first)
    if kind is not Format.CHROME:
        if store is True:
            raise UsageError(f"{source.name}: a store is only made of Chrome traces")
        tables = _read_other(kind, source, chain([first], content))
        return Trace.from_tables(tables, source.name)
    head, is_whole = _up_to(first, content, COMPILED_ABOVE_BYTES)
    content.put_back(head)
    del head  # as memory that is soon free again
    read_events: ReadEvents = read_events_tolerantly
    if not is_whole:
        from stepscope.trace.formats.chrome.scan import read_events_compiled

        read_events = read_events_compiled
    if store is True or (store == "auto" and _is_large(source, origin, is_whole=is_whole)):
        with StoreWriter(origin or origin_of_stream(source.name)) as writer:
            assembler = read_into(source.name, content, problems, read_events, writer.add)
            place = writer.finish(assembler)
        return open_store(place, source.name)
    tables = read_kineto_blocks(source.name, content, problems, read_events)
    return Trace.from_tables(tables, source.name)


def _is_large(source: Source, origin: Origin | None, *, is_whole: bool) -> bool:
    """Whether a trace goes through the store unless asked otherwise."""
    if source.path is None and origin is not None:  # remote, and worth keeping
        return True
    if source.size_bytes is None:
        return not is_whole
    above = STORE_ABOVE_BYTES // 10 if source.is_compressed else STORE_ABOVE_BYTES
    return source.size_bytes > above


def _up_to(first: bytes, blocks: Iterator[bytes], size: int) -> tuple[list[bytes], bool]:
    """Reads ahead until so many bytes are at hand; and whether that is all there is."""
    head = [first]
    total = len(first)
    while total <= size:
        block = next(blocks, None)
        if block is None:
            return head, True
        head.append(block)
        total += len(block)
    return head, False


def _read_other(kind: Format, source: Source, blocks: Iterator[bytes]) -> Tables:
    """Reads a format whose reader wants a plain file: one is made where there is none."""
    if source.path is not None and not source.is_compressed:
        return _read_file(kind, source.path)
    suffix = ".nsys-rep" if kind is Format.NSYS_REPORT else ".tmp"
    with tempfile.TemporaryDirectory(prefix="stepscope-") as directory:
        copy = Path(directory) / f"trace{suffix}"
        with copy.open("wb") as target:
            for block in blocks:
                target.write(block)
        return _read_file(kind, copy)


def _read_file(kind: Format, path: Path) -> Tables:
    if kind is Format.PYSPY:
        from stepscope.trace.formats.pyspy import read_pyspy

        return read_pyspy(path)
    if kind in (Format.NSYS_SQLITE, Format.NSYS_REPORT):
        from stepscope.trace.formats.nsys.reader import read_nsys

        return read_nsys(path)
    raise UnreadableInputError(f"{path}: no reader for {kind.value}")
