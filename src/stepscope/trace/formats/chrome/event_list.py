"""Readers for the list of events: their interface, and the tolerant reader.

The compiled reader is in `scan.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stepscope.trace.formats.chrome.rows import Between, Rows, rows_from_events
from stepscope.trace.formats.chrome.tolerant.event_text import Outcome, read_stretch
from stepscope.trace.source.content import Content


@dataclass(frozen=True)
class Ending:
    """The end of the list of events.

    Attributes:
        rest: Bytes after the list that were already read.
        offset: Byte offset of `rest` in the uncompressed file.
        closed: False if the file ended before the list.
        given_up: Whether reading stopped because no event followed for long.
    """

    rest: bytes
    offset: int
    closed: bool
    given_up: bool = False


Take = Callable[[Rows], None]
"""Takes consecutive events."""
ReadEvents = Callable[[bytes, int, Content, Take], Ending]
"""Reads the list of events.

Arguments: bytes already read, their offset, the content after them, and a function that takes the
events.
"""


def decode(data: bytes) -> str:
    """Decodes bytes so that every position can be mapped back: bad bytes become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


class BytePositions:
    """Maps positions in decoded text back to positions in its bytes.

    Only the text before a position is counted, and only once where positions ascend, so that a few
    positions in a long text cost little.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._is_ascii = text.isascii()
        self._counted = (0, 0)  # a position, and its bytes

    def __call__(self, position: int) -> int:
        """Returns how many bytes precede a position."""
        if self._is_ascii:
            return position
        start, size = self._counted if self._counted[0] <= position else (0, 0)
        size += len(self._text[start:position].encode("utf-8", "surrogateescape"))
        self._counted = (position, size)
        return size


def read_events_tolerantly(data: bytes, offset: int, blocks: Content, take: Take) -> Ending:
    """Reads the list of events in pure Python, starting after its opening bracket."""
    between = Between.START
    final = False
    fruitless = 0
    while True:
        text = decode(data)
        stretch = read_stretch(text, 0, between, final, fruitless=fruitless)
        in_bytes = BytePositions(text)
        if stretch.events or stretch.problems:
            offsets = [offset + in_bytes(position) for position in stretch.positions]
            problems = stretch.problems.moved(in_bytes, offset)
            take(rows_from_events(stretch.events, offsets, problems))
        if any(event.phase is not None for event in stretch.events):
            blocks.recognised(len(stretch.events))
        used = in_bytes(stretch.stop)
        offset += used
        between = stretch.between
        fruitless = stretch.fruitless
        if stretch.outcome is Outcome.GIVEN_UP:
            return Ending(b"", offset, closed=False, given_up=True)
        if stretch.outcome is Outcome.END:
            return Ending(data[used:], offset, closed=True)
        if final:
            return Ending(data[used:], offset, closed=False)
        data = data[used:]
        data, final = more(data, blocks)


def more(data: bytes, blocks: Iterator[bytes]) -> tuple[bytes, bool]:
    """Appends blocks until the data has doubled, so that retries take linear time overall."""
    pieces = [data]
    wanted = len(data)
    while True:
        block = next(blocks, None)
        if block is None:
            return b"".join(pieces), True
        pieces.append(block)
        wanted -= len(block)
        if wanted <= 0:
            return b"".join(pieces), False
