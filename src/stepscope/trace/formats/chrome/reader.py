"""Reads Chrome traces, as written by PyTorch's recorder Kineto and other tools, into tables.

Two readers for the list of events produce the same rows. The tolerant one (`event_text.py`), in
Python, knows every layout and repairs what it can. The compiled scanner (`scan.py`) is about
fifteen times faster. Where it does not recognise events, they are repaired if that is easy to tell
(`mend_events.py`), and read by the tolerant reader otherwise.
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
    from stepscope.trace.formats.chrome.scanner.scanned import Scanned  # imports llvmlite


def read_tables(
    name: str,
    content: Content,
    problems: Problems,
    read_events: ReadEvents = read_events_tolerantly,
) -> Tables:
    """Reads a Chrome trace into memory, repairing what it can.

    Args:
        problems: Problems of the compressed stream.

    Returns:
        The tables. `problems` reports what was repaired or skipped.

    Raises:
        UnreadableInputError: The content is empty or not a trace.
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
    """Like `read_tables`, but passes on the growing tables in chunks.

    Args:
        stays: Whether the chunks stay in memory (see `Assembler`).

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
