"""The tolerant, complete reader of Chrome traces, as PyTorch's recorder Kineto writes them.

Pure Python, exact, and slower than the compiled scanner (`scan.py`) by a factor of about thirty:
it reads small files, decides about everything that the scanner does not recognise, and is the
scanner's oracle in tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from stepscope.trace.formats.chrome.assemble import Assembler, Chunk
from stepscope.trace.formats.chrome.document import (
    ReadEvents,
    read_document,
    read_events_tolerantly,
)
from stepscope.trace.formats.chrome.rows import Rows
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content
from stepscope.trace.source.opening import Location, open_source
from stepscope.trace.tables import Tables

if TYPE_CHECKING:
    from stepscope.trace.formats.chrome.scanned import Scanned  # imports numba


def read_kineto(location: Location) -> Tables:
    """Reads a Chrome trace into memory, repairing what can be repaired.

    Args:
        location: A path, an fsspec URL or a binary stream; plain, gzip or zstd.

    Returns:
        The tables; `problems` says what was repaired or skipped.

    Raises:
        UnreadableInputError: There is nothing to read, or it is no trace.
    """
    with open_source(location) as source:
        problems = Problems()
        return read_kineto_blocks(source.name, source.blocks(problems), problems)


def read_kineto_blocks(
    name: str,
    content: Content,
    problems: Problems,
    read_events: ReadEvents = read_events_tolerantly,
) -> Tables:
    """As `read_kineto`, of uncompressed content, with either reader of the list of events.

    Args:
        name: For messages.
        content: The bytes.
        problems: What reading the content itself has found.
        read_events: The tolerant reader or the compiled one.
    """
    chunks: list[Chunk] = []
    read = read_into(name, content, problems, read_events, chunks.append, stays=True)
    return read.tables(chunks)


def read_into(
    name: str,
    content: Content,
    problems: Problems,
    read_events: ReadEvents,
    take: Callable[[Chunk], None],
    *,
    stays: bool = False,
) -> Assembler:
    """As `read_kineto_blocks`, handing over the growing tables piece by piece.

    Args:
        name: For messages.
        content: The bytes.
        problems: What reading the content itself has found.
        read_events: The tolerant reader or the compiled one.
        take: Receives what blocks of events add to the tables.
        stays: Whether that stays in memory (see `Assembler`).

    Returns:
        The assembler, for the tables that do not grow with the file.
    """
    threads = min(os.cpu_count() or 1, 4)
    with ThreadPoolExecutor(threads, thread_name_prefix="stepscope-assemble") as pool:
        assembler = Assembler(pool, stays=stays)

        def assemble(rows: Rows | Scanned) -> None:
            for chunk in assembler.add(rows):
                take(chunk)

        read_document(name, content, assembler, read_events, assemble)
        for chunk in assembler.close():
            take(chunk)
    assembler.problems.merge(problems)
    return assembler
