"""The compiled reader for the list of events: pieces, threads, and what joins their results.

The file is cut into pieces where an event seems to start (`scan_pieces`). Threads scan the pieces
(`scan_piece`), assuming that the cuts are right. The pieces are then finished in order
(`read_piece`): if the previous piece ended exactly at the cut, the scan was valid. Otherwise the
piece is joined to the rest of the previous one and scanned again. A wrong cut, for example inside a
string that looks like the boundary between two events, costs time but never a row.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context

from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome.event_list import Ending, Take
from stepscope.trace.formats.chrome.read_piece import finish
from stepscope.trace.formats.chrome.scan_piece import Scan
from stepscope.trace.formats.chrome.scanner.scan_pieces import Cutter, piece_of
from stepscope.trace.formats.chrome.scanner.scan_words import Words
from stepscope.trace.formats.chrome.scanner.scanned import Scanned
from stepscope.trace.formats.chrome.tolerant.event_text import Between
from stepscope.trace.source.content import Content, prefetched


class _Reader:
    """Processes scanned pieces in order, and rescans where a cut was wrong."""

    def __init__(self, offset: int, content: Content, take: Take, buffers: Buffers) -> None:
        self.content = content
        self.take = take
        self.buffers = buffers
        self.offset = offset  # of `carry`
        self.carry = bytearray()  # grows in place: an event can reach over very many pieces
        self.wanted = 0  # size of `carry` before the next attempt
        self.between = Between.START
        self.ended = False
        self.given_up = False
        self._fruitless = 0
        self._words: list[Words] = []  # not in use by any scan

    def words(self) -> Words:
        """Returns words for a scan, preferably of an earlier one, which has most words already."""
        return self._words.pop() if self._words else Words()

    def next(self, scan: Scan) -> None:
        """Processes the next piece."""
        if self.ended:
            self.carry += scan.raw[: scan.end]
            return
        if self.carry or scan.between is not self.between:
            self.carry += scan.raw[: scan.end]
            self._words.append(scan.words)
            if len(self.carry) < self.wanted:
                return
            scan = self._again()
        self._accept(scan, final=False)

    def finish(self) -> None:
        """Processes the rest at the end of the file."""
        if self.carry and not self.ended:
            self._accept(self._again(), final=True)

    def _again(self) -> Scan:
        piece = piece_of(self.carry, self.offset, self.buffers)
        return Scan(piece, self.between, self.buffers, self.words()).run()

    def _accept(self, scan: Scan, final: bool) -> None:
        finished = finish(scan, final, self._fruitless)
        if len(finished.rows) or not isinstance(finished.rows, Scanned):
            self.take(finished.rows)
        if finished.has_events:
            self.content.recognised(len(finished.rows))
        self._words.append(finished.words)
        self.carry = bytearray(scan.raw[finished.stop : scan.end])
        self.offset = scan.offset + finished.stop
        self.wanted = 0 if finished.stop else 2 * len(self.carry)
        self.between = finished.between
        self.ended = finished.ended or finished.given_up
        self.given_up = finished.given_up
        self._fruitless = finished.fruitless


def read_events_compiled(
    data: bytes, offset: int, content: Content, take: Take, threads: int | None = None
) -> Ending:
    """Reads the list of events with the compiled scanner, starting after its opening bracket.

    Args:
        offset: Offset of `data` in the uncompressed file.
        threads: Number of scanning threads. Default: one per processor, at most 8.
    """
    count = threads or min(os.cpu_count() or 1, 8)
    buffers = Buffers()
    reader = _Reader(offset, content, take, buffers)
    cutter = Cutter(data, offset, content)
    waiting: deque[Future[Scan]] = deque()
    with (
        ThreadPoolExecutor(count, thread_name_prefix="stepscope-scan") as pool,
        closing(prefetched(cutter.pieces(), ahead=1)) as pieces,
    ):
        between = Between.START
        for piece in pieces:
            scan = Scan(piece, between, buffers, reader.words())
            # Within the context, as a terminal is told when the first scan compiles the scanner.
            waiting.append(pool.submit(copy_context().run, scan.run))
            between = Between.AFTER_COMMA
            del piece, scan
            if len(waiting) > count:
                reader.next(waiting.popleft().result())
            if reader.ended:
                cutter.enough.set()
        while waiting:
            reader.next(waiting.popleft().result())
    if reader.given_up:
        return Ending(b"", reader.offset, closed=False, given_up=True)
    if reader.ended:
        return Ending(bytes(reader.carry) + cutter.carry, reader.offset, closed=True)
    reader.finish()
    return Ending(bytes(reader.carry), reader.offset, closed=reader.ended)
