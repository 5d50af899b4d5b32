"""The compiled reader for the list of events: pieces, threads, and what joins their results.

The file is cut into pieces where an event seems to start (`scan_pieces`). Threads scan the pieces
(`scan_piece`), assuming that the cuts are right. The pieces are then finished in order
(`finish`): if the previous piece ended exactly at the cut, the scan was valid. Otherwise the
piece is joined to the rest of the previous one and scanned again. A wrong cut, for example inside a
string that looks like the boundary between two events, costs time but never a row.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome.event_list import BytePositions, Ending, Take, decode
from stepscope.trace.formats.chrome.rows import Event, Rows, Vocabulary, rows_from_events
from stepscope.trace.formats.chrome.scan_piece import Scan
from stepscope.trace.formats.chrome.scanner.scan_events import ENDED, FULL, HANDED_OVER
from stepscope.trace.formats.chrome.scanner.scan_pieces import Cutter, piece_of
from stepscope.trace.formats.chrome.scanner.scan_words import Words
from stepscope.trace.formats.chrome.scanner.scanned import BETWEEN, ROWS, Scanned
from stepscope.trace.formats.chrome.tolerant.event_text import (
    Between,
    Outcome,
    Stretch,
    read_stretch,
)
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content, prefetched

_FIRST_WINDOW = 16 * 1024
_MOST_AT_ONCE = 512


@dataclass(frozen=True)
class FinishedPiece:
    """A piece that was read as far as possible without the next one."""

    rows: Rows | Scanned
    words: Words
    stop: int
    between: Between
    ended: bool
    fruitless: int
    given_up: bool

    @property
    def has_events(self) -> bool:
        """Whether there is an event with a phase."""
        if isinstance(self.rows, Scanned):
            return bool(self.rows.phases[: len(self.rows)].any())
        return bool(np.asarray(self.rows.phase).any())


class _ByHand:
    """The events of one piece that were read by the tolerant reader."""

    def __init__(self, fruitless: int) -> None:
        self.fruitless = fruitless
        self.given_up = False
        self.used = 0  # bytes of the last stretch
        self.events: list[Event] = []
        self.offsets: list[int] = []
        self.problems = Problems()

    def add(self, stretch: Stretch, text: str, offset: int) -> int:
        """Adds a stretch, and returns how many bytes it used."""
        in_bytes = BytePositions(text)
        self.events += stretch.events
        self.offsets += [offset + in_bytes(position) for position in stretch.positions]
        self.problems.merge(stretch.problems.moved(in_bytes, offset))
        self.used = in_bytes(stretch.stop)
        return self.used


def finish(scan: Scan, final: bool, fruitless: int) -> FinishedPiece:
    """Reads a piece to its end, using the tolerant reader wherever the scanner stops."""
    by_hand = _ByHand(fruitless)
    most, last_rows = 1, -1
    while scan.status in (HANDED_OVER, FULL):
        if scan.status == FULL:
            scan = scan.larger()
            by_hand, most, last_rows = _ByHand(fruitless), 1, -1
            continue
        scanned = int(scan.state[ROWS])
        if scan.bytes[0][max(last_rows, 0) : scanned].any():
            by_hand.fruitless = 0
        most = min(most * 2, _MOST_AT_ONCE) if scanned - last_rows < 4 * most else 1
        last_rows = scanned
        if not _hand_over(scan, by_hand, final, most) or by_hand.given_up:
            break
    scanned_rows = scan.scanned()
    if scan.bytes[0][max(last_rows, 0) : int(scan.state[ROWS])].any():
        by_hand.fruitless = 0
    rows: Rows | Scanned = scanned_rows
    if by_hand.events or by_hand.problems:
        rows = _merged(scanned_rows.rows(), by_hand)
    stop = min(scan.position, scan.end)
    between = Between(int(scan.state[BETWEEN]))
    return FinishedPiece(
        rows, scan.words, stop, between, scan.status == ENDED, by_hand.fruitless, by_hand.given_up
    )


def _hand_over(scan: Scan, by_hand: _ByHand, final: bool, most: int) -> bool:
    """Reads a few events with the tolerant reader; False if it needs the next piece."""
    at = scan.position
    between = Between(int(scan.state[BETWEEN]))
    # Of many small elements, only about as much text as they need is decoded.
    window = min(_FIRST_WINDOW * most, max(_FIRST_WINDOW, 4 * by_hand.used))
    while True:
        whole = at + window >= scan.end
        text = decode(bytes(scan.raw[at : min(at + window, scan.end)]))
        stretch = read_stretch(text, 0, between, final and whole, most, by_hand.fruitless)
        ended = stretch.outcome is Outcome.END
        by_hand.given_up = stretch.outcome is Outcome.GIVEN_UP
        if stretch.stop > 0 or ended:
            after = at + by_hand.add(stretch, text, scan.offset + at)
            scan.continue_from(after, stretch.between)
            by_hand.fruitless = stretch.fruitless
            if by_hand.given_up:
                return True
            if ended:
                scan.status = ENDED
            else:
                scan.run()
            return True
        if whole:
            return False
        window *= 64


def _merged(rows: Rows, by_hand: _ByHand) -> Rows:
    """Merges the rows of the scanner and the tolerant reader, in file order."""
    rows.problems.merge(by_hand.problems)
    if not by_hand.events:
        return rows
    other = rows_from_events(by_hand.events, by_hand.offsets, by_hand.problems)
    order = np.argsort(np.concatenate([rows.offset, other.offset]), kind="stable")

    def both(column: str, shift: int = 0) -> npt.NDArray[np.generic]:
        first, second = getattr(rows, column), getattr(other, column)
        return np.concatenate([first, second + shift] if shift else [first, second])[order]

    names, lanes = len(rows.names), len(rows.lanes)
    shifts = {"name": names, "lane": lanes}
    plain = (
        "phase", "flags", "name", "lane", "time_ns", "dur_ns", "flow_id", "correlation",
        "external_id", "device", "stream", "bytes", "offset",
    )  # fmt: skip
    columns = {column: both(column, shifts.get(column, 0)) for column in plain}
    return Rows(
        **columns,  # type: ignore[arg-type]
        args=pl.concat([rows.args, other.args]).gather(order),
        names=Vocabulary(rows.names.pairs + other.names.pairs),
        lanes=Vocabulary(rows.lanes.pairs + other.lanes.pairs),
        problems=rows.problems,
    )


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
        closing(prefetched(cutter.pieces())) as pieces,
    ):
        between = Between.START
        for piece in pieces:
            scan = Scan(piece, between, buffers, reader.words())
            # Within the context, so that a terminal shows that the first scan compiles the scanner.
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
