"""Reads Chrome traces, as PyTorch's recorder Kineto and other tools write them, into tables.

The list of events is read by either of two readers, which give the same rows: the tolerant one in
Python (`event_text.py`) knows every layout and repairs what can be repaired; the compiled scanner
(`scan.py`) is about thirty times faster, and hands over to the tolerant one whatever it does not
recognise.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from stepscope.trace.formats.chrome.assemble import Assembler
from stepscope.trace.formats.chrome.document import read_document
from stepscope.trace.formats.chrome.event_list import ReadEvents, read_events_tolerantly
from stepscope.trace.formats.chrome.rows import Rows
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content
from stepscope.trace.tables import Chunk, SmallTables, Tables

if TYPE_CHECKING:
    from stepscope.trace.formats.chrome.scanned import Scanned  # imports numba


def read_tables(
    name: str,
    content: Content,
    problems: Problems,
    read_events: ReadEvents = read_events_tolerantly,
) -> Tables:
    """Reads a Chrome trace into memory, repairing what can be repaired.

    Args:
        name: For messages.
        content: The uncompressed bytes.
        problems: What reading the content itself finds.
        read_events: The tolerant reader or the compiled one.

    Returns:
        The tables; `problems` says what was repaired or skipped.

    Raises:
        UnreadableInputError: There is nothing to read, or it is no trace.
    """
    chunks: list[Chunk] = []
    small = read_in_chunks(name, content, problems, read_events, chunks.append, stays=True)
    return Tables.joined(chunks, small)


def read_in_chunks(
    name: str,
    content: Content,
    problems: Problems,
    read_events: ReadEvents,
    take: Callable[[Chunk], None],
    *,
    stays: bool = False,
) -> SmallTables:
    """As `read_tables`, handing over the growing tables chunk by chunk.

    Args:
        name: For messages.
        content: The uncompressed bytes.
        problems: What reading the content itself finds.
        read_events: The tolerant reader or the compiled one.
        take: Receives what blocks of events add to the tables.
        stays: Whether that stays in memory (see `Assembler`).

    Returns:
        The tables that do not grow with the file.
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
    return assembler.small_tables()
