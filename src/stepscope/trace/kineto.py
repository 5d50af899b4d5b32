"""The tolerant, complete reader of Chrome traces, as PyTorch's recorder Kineto writes them.

Pure Python, exact, and slower than the compiled scanner (`scan.py`) by a factor of about thirty:
it reads small files, decides about everything that the scanner does not recognise, and is the
scanner's oracle in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stepscope.trace.assemble import Assembler, Chunk
from stepscope.trace.document import ReadEvents, read_document, read_events_tolerantly
from stepscope.trace.problems import Problems
from stepscope.trace.rows import Rows
from stepscope.trace.source import Location, open_source
from stepscope.trace.tables import Tables


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
    blocks: Iterator[bytes],
    problems: Problems,
    read_events: ReadEvents = read_events_tolerantly,
) -> Tables:
    """As `read_kineto`, of uncompressed content, with either reader of the list of events.

    Args:
        name: For messages.
        blocks: The content, in order.
        problems: What reading the blocks itself has found.
        read_events: The tolerant reader or the compiled one.
    """
    chunks: list[Chunk] = []
    assembler = Assembler(stays=True)
    return read_into(name, blocks, problems, read_events, chunks.append, assembler).tables(chunks)


def read_into(
    name: str,
    blocks: Iterator[bytes],
    problems: Problems,
    read_events: ReadEvents,
    take: Callable[[Chunk], None],
    assembler: Assembler | None = None,
) -> Assembler:
    """As `read_kineto_blocks`, handing over the growing tables piece by piece.

    Returns:
        The assembler, for the tables that do not grow with the file.
    """
    assembler = assembler or Assembler()

    def assemble(rows: Rows) -> None:
        take(assembler.add(rows))

    read_document(name, blocks, assembler, read_events, assemble)
    take(assembler.close())
    assembler.problems.merge(problems)
    return assembler
