"""The list of events: what both of its readers have in common, and the tolerant one.

The other one is `scan.py`, which hands over to this one's parts what it does not recognise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from stepscope.trace.formats.chrome.event_text import Between, Outcome, read_stretch
from stepscope.trace.formats.chrome.rows import Rows, rows_from_events
from stepscope.trace.source.content import Content

if TYPE_CHECKING:
    from stepscope.trace.formats.chrome.scanned import Scanned  # imports numba


@dataclass(frozen=True)
class Ending:
    """Where the list of events ended.

    Attributes:
        rest: Bytes already read that follow it.
        offset: Of `rest` in the uncompressed file.
        closed: False where the file ended first.
    """

    rest: bytes
    offset: int
    closed: bool


Take = Callable[["Rows | Scanned"], None]
"""Receives consecutive events."""
ReadEvents = Callable[[bytes, int, Content, Take], Ending]
"""Reads the list of events: bytes at hand, their offset, the content after them, the taker."""


def decode(data: bytes) -> str:
    """Text of which every position can be traced back: bad bytes become lone surrogates."""
    return data.decode("utf-8", "surrogateescape")


def byte_offsets(text: str) -> npt.NDArray[np.int64] | None:
    """Offset in bytes of every character of `decode`'s text and of its end; None: the same."""
    if text.isascii():
        return None
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    widths = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    widths[(points >= 0xDC80) & (points <= 0xDCFF)] = 1
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(widths)])


def read_events_tolerantly(data: bytes, offset: int, blocks: Iterator[bytes], take: Take) -> Ending:
    """Reads the list of events from its opening bracket on, in pure Python: the oracle."""
    between = Between.START
    final = False
    while True:
        text = decode(data)
        stretch = read_stretch(text, 0, between, final)
        in_bytes = byte_offsets(text)

        def moved(
            position: int, base: int = offset, table: npt.NDArray[np.int64] | None = in_bytes
        ) -> int:
            return base + (position if table is None else int(table[position]))

        if stretch.events or stretch.problems:
            problems = stretch.problems.moved(moved)
            offsets = [moved(position) for position in stretch.positions]
            take(rows_from_events(stretch.events, offsets, problems))
        used = moved(stretch.stop) - offset
        offset += used
        between = stretch.between
        if stretch.outcome is Outcome.END:
            return Ending(data[used:], offset, closed=True)
        if final:
            return Ending(data[used:], offset, closed=False)
        data = data[used:]
        data, final = more(data, blocks)


def more(data: bytes, blocks: Iterator[bytes]) -> tuple[bytes, bool]:
    """Appends blocks, as much again as is at hand, so that retries cost no more than reading."""
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
