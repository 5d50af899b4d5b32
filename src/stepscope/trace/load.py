"""Opens any trace: finds out what it is, by content, and reads it with the reader for that."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from enum import Enum
from itertools import chain
from pathlib import Path

from stepscope.errors import UnreadableInputError
from stepscope.trace.model import Trace
from stepscope.trace.problems import Problems
from stepscope.trace.source import SQLITE_MAGIC, Location, Source, open_source
from stepscope.trace.tables import Tables


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


def load(location: Location) -> Trace:
    """Reads a trace of any known format.

    Args:
        location: A path, an fsspec URL or a binary stream.

    Raises:
        UnreadableInputError: It cannot be read; says why and what to do.
    """
    with open_source(location) as source:
        problems = Problems()
        blocks = source.blocks(problems)
        first = next(blocks, b"")
        kind = format_of(source, first)
        whole = chain([first], blocks)
        if kind is Format.CHROME:
            from stepscope.trace.kineto import read_kineto_blocks

            tables = read_kineto_blocks(source.name, whole, problems)
        else:
            tables = _read_other(kind, source, whole)
        return Trace.from_tables(tables, source.name)


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
        from stepscope.trace.pyspy import read_pyspy

        return read_pyspy(path)
    if kind in (Format.NSYS_SQLITE, Format.NSYS_REPORT):
        from stepscope.trace.nsys import read_nsys

        return read_nsys(path)
    raise UnreadableInputError(f"{path}: no reader for {kind.value}")
