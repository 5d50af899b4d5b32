"""The compiled reader for the list of events: pieces, threads, and what joins their results.

The file is cut into pieces where an event seems to start (`scan_pieces`). Threads scan the pieces
(`Scan`), assuming that the cuts are right. The pieces are then finished in order (`_Reader`): if
the previous piece ended exactly at the cut, the scan was valid. Otherwise the piece is joined to
the rest of the previous one and scanned again. A wrong cut, for example inside a string that looks
like the boundary between two events, costs time but never a row.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.arrow_columns import strings_of
from stepscope.trace.formats.chrome.event_list import BytePositions, Ending, Take, decode
from stepscope.trace.formats.chrome.rows import (
    NUMBERS,
    Between,
    Event,
    Rows,
    Vocabulary,
    rows_from_events,
)
from stepscope.trace.formats.chrome.scanner.repaired import RepairedBlock, can_repair
from stepscope.trace.formats.chrome.scanner.scan_events import (
    ENDED,
    FULL,
    HANDED_OVER,
    USED_UP,
    scan_events,
)
from stepscope.trace.formats.chrome.scanner.scan_pieces import Cutter, Piece, piece_of
from stepscope.trace.formats.chrome.scanner.scan_rows import (
    BETWEEN,
    DATA,
    END,
    INT64_COLUMNS,
    OFFSET,
    POSITION,
    ROWS,
)
from stepscope.trace.formats.chrome.scanner.scan_vocabularies import Vocabularies
from stepscope.trace.formats.chrome.tolerant.event_text import Outcome, Stretch, read_stretch
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content, prefetched

_BYTES_EACH = 96  # of the smallest usual events
_FIRST_WINDOW = 16 * 1024
_MOST_AT_ONCE = 512


class Scan:
    """The scan of one piece, and how far it got."""

    def __init__(
        self,
        piece: Piece,
        between: Between,
        vocabularies: Vocabularies,
        scale: int = 1,
    ) -> None:
        rows = piece.end // (_BYTES_EACH // min(scale, 16)) + 64
        self.piece = piece
        self.data = piece.data
        self.between = between
        self.scale = scale
        self.vocabularies = vocabularies
        self.columns = np.empty((INT64_COLUMNS, rows), np.int64)
        self.views = np.empty((rows, 2), np.int64)
        self.bytes = np.empty((2, rows), np.uint8)
        self.numbers = np.empty((2, rows), np.int32)
        self.state = np.array(
            [
                self.data.ctypes.data, piece.end, 0, between.value, 0, rows,
                *(
                    column.ctypes.data
                    for column in (self.columns, self.views, *self.bytes, *self.numbers)
                ),
            ],
            np.int64,
        )  # fmt: skip
        self.status = HANDED_OVER
        self._repaired: RepairedBlock | None = None

    def run(self) -> Scan:
        """Scans from the current state."""
        self._scan()
        while self._has_repaired():
            self._scan()
        return self

    def _scan(self) -> None:
        self.status = scan_events(
            self.state.ctypes.data,
            self.vocabularies.names.table.ctypes.data,
            self.vocabularies.lanes.table.ctypes.data,
            self.vocabularies.patterns.table.ctypes.data,
        )

    def _has_repaired(self) -> bool:
        """Whether there is more to scan now, as events were repaired."""
        repaired = self._repaired
        end = self.piece.end
        if repaired is None:
            at = int(self.state[POSITION])
            if self.status != HANDED_OVER or not can_repair(self.data, at, end):
                return False
            self._repaired = repaired = RepairedBlock(self.data, at, end)
        elif self.status != USED_UP:
            return False
        if not repaired.copy_next():
            self.status = USED_UP if self.position >= end else HANDED_OVER
            return False
        self._scan_copy(repaired)
        return True

    def _scan_copy(self, repaired: RepairedBlock) -> None:
        self.data = repaired.data
        self.state[DATA], self.state[END] = repaired.data.ctypes.data, repaired.end

    @property
    def position(self) -> int:
        """The position in the piece up to which it was scanned."""
        position = int(self.state[POSITION])
        return position if self._repaired is None else self._repaired.original(position)

    def continue_from(self, position: int, between: Between) -> None:
        """Continues elsewhere in the piece: at a position between events."""
        self.state[BETWEEN] = between.value
        if self._repaired is None:
            self.state[POSITION] = position
        else:
            self._repaired.continue_from(int(self.state[POSITION]), position)
            self._scan_copy(self._repaired)

    def larger(self) -> Scan:
        """Scans the same piece again from the start, with larger buffers."""
        if int(self.state[ROWS]) < len(self.views):
            vocabularies = Vocabularies(self.vocabularies.scale * 4)
            return Scan(self.piece, self.between, vocabularies, self.scale).run()
        return Scan(self.piece, self.between, self.vocabularies, self.scale * 4).run()

    def rows(self) -> Rows:
        """Returns the events scanned so far, as views of the scan's memory."""
        self.vocabularies.catch_up()
        count, repaired, problems = int(self.state[ROWS]), self._repaired, Problems()
        columns, views = self.columns[:, :count], self.views[:count].view(np.uint32)
        numbers: dict[str, npt.NDArray[Any]] = {
            name: column.view(dtype)
            for (name, (_, dtype)), column in zip(NUMBERS.items(), columns, strict=False)
        }
        starts = columns[OFFSET]
        if repaired is not None:
            starts = repaired.originals(starts)
            problems = repaired.problems(int(self.state[POSITION]), self.piece.offset)
        return Rows(
            phase=self.bytes[0, :count],
            flags=self.bytes[1, :count].astype(np.uint32),
            name=self.numbers[0, :count],
            lane=self.numbers[1, :count],
            offset=starts + self.piece.offset,
            args=strings_of(
                "args", self.data, views, np.packbits(views[:, 0] > 0, bitorder="little")
            ),
            names=self.vocabularies.names,
            lanes=self.vocabularies.lanes,
            problems=problems,
            **numbers,
        )


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


def _hand_over(scan: Scan, by_hand: _ByHand, final: bool, most: int) -> bool:
    """Reads a few events with the tolerant reader; False if it needs the next piece."""
    at, end = scan.position, scan.piece.end
    between = Between(int(scan.state[BETWEEN]))
    # Of many small elements, only about as much text as they need is decoded.
    window = min(_FIRST_WINDOW * most, max(_FIRST_WINDOW, 4 * by_hand.used))
    while True:
        whole = at + window >= end
        text = decode(bytes(scan.piece.view[at : min(at + window, end)]))
        stretch = read_stretch(text, 0, between, final and whole, most, by_hand.fruitless)
        ended = stretch.outcome is Outcome.END
        by_hand.given_up = stretch.outcome is Outcome.GIVEN_UP
        if stretch.stop > 0 or ended:
            after = at + by_hand.add(stretch, text, scan.piece.offset + at)
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
    plain = ("phase", "flags", "name", "lane", "offset", *NUMBERS)
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

    def __init__(self, offset: int, content: Content, take: Take) -> None:
        self.content = content
        self.take = take
        self.offset = offset  # of `carry`
        self.carry = bytearray()  # grows in place: an event can reach over very many pieces
        self.wanted = 0  # size of `carry` before the next attempt
        self.between = Between.START
        self.ended = False
        self.given_up = False
        self._fruitless = 0
        self._words: list[Vocabularies] = []  # not in use by any scan

    def vocabularies(self) -> Vocabularies:
        """Returns words for a scan, preferably of an earlier one, which has most words already."""
        return self._words.pop() if self._words else Vocabularies()

    def next(self, scan: Scan) -> None:
        if self.ended:
            self.carry += scan.piece.view[: scan.piece.end]
            return
        if self.carry or scan.between is not self.between:
            self.carry += scan.piece.view[: scan.piece.end]
            self._words.append(scan.vocabularies)
            if len(self.carry) < self.wanted:
                return
            scan = self._again()
        self._accept(scan, final=False)

    def finish(self) -> None:
        if self.carry and not self.ended:
            self._accept(self._again(), final=True)

    def _again(self) -> Scan:
        piece = piece_of(self.carry, self.offset)
        return Scan(piece, self.between, self.vocabularies()).run()

    def _accept(self, scan: Scan, final: bool) -> None:
        """Takes the events of a piece, read as far as possible without the next one.

        Wherever the scanner stops, the tolerant reader goes on.
        """
        by_hand = _ByHand(self._fruitless)
        most, last_rows = 1, -1
        while scan.status in (HANDED_OVER, FULL):
            if scan.status == FULL:
                scan = scan.larger()
                by_hand, most, last_rows = _ByHand(self._fruitless), 1, -1
                continue
            scanned = int(scan.state[ROWS])
            if scan.bytes[0][max(last_rows, 0) : scanned].any():
                by_hand.fruitless = 0
            most = min(most * 2, _MOST_AT_ONCE) if scanned - last_rows < 4 * most else 1
            last_rows = scanned
            if not _hand_over(scan, by_hand, final, most) or by_hand.given_up:
                break
        if scan.bytes[0][max(last_rows, 0) : int(scan.state[ROWS])].any():
            by_hand.fruitless = 0
        rows = scan.rows()
        if by_hand.events or by_hand.problems:
            rows = _merged(rows, by_hand)
        if len(rows) or rows.problems:
            self.take(rows)
        if rows.phase.any():
            self.content.recognised(len(rows))
        self._words.append(scan.vocabularies)
        piece, stop = scan.piece, min(scan.position, scan.piece.end)
        self.carry = bytearray(piece.view[stop : piece.end])
        self.offset = piece.offset + stop
        self.wanted = 0 if stop else 2 * len(self.carry)
        self.between = Between(int(scan.state[BETWEEN]))
        self.given_up = by_hand.given_up
        self.ended = scan.status == ENDED or self.given_up
        self._fruitless = by_hand.fruitless


def read_events_compiled(
    data: bytes, offset: int, content: Content, take: Take, threads: int | None = None
) -> Ending:
    """Reads the list of events with the compiled scanner, starting after its opening bracket.

    Args:
        offset: Offset of `data` in the uncompressed file.
        threads: Number of scanning threads. Default: one per processor, at most 8.
    """
    count = threads or min(os.cpu_count() or 1, 8)
    reader = _Reader(offset, content, take)
    cutter = Cutter(data, offset, content)
    waiting: deque[Future[Scan]] = deque()
    with (
        ThreadPoolExecutor(count, thread_name_prefix="stepscope-scan") as pool,
        closing(prefetched(cutter.pieces())) as pieces,
    ):
        between = Between.START
        for piece in pieces:
            scan = Scan(piece, between, reader.vocabularies())
            # Within the context, so that a terminal shows that the first scan compiles the scanner.
            waiting.append(pool.submit(copy_context().run, scan.run))
            between = Between.AFTER_COMMA
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
