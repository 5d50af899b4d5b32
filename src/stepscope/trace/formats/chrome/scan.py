"""The compiled reader for the list of events: blocks, threads, and the scanner with its fallback.

The file is cut into blocks where an event seems to start. Threads scan the blocks, assuming that
the cuts are right. The blocks are then processed in order: if the previous block ended exactly at
the cut, the scan was valid. Otherwise the block is joined to the rest of the previous block and
scanned again. A wrong cut, for example inside a string that looks like the boundary between two
events, costs time but never a row.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome.event_list import BytePositions, Ending, Take, decode
from stepscope.trace.formats.chrome.event_text import Between, Outcome, Stretch, read_stretch
from stepscope.trace.formats.chrome.mended import Mended, can_mend
from stepscope.trace.formats.chrome.plain_survey import survey_of
from stepscope.trace.formats.chrome.rows import Event, Rows, Vocabulary, rows_from_events
from stepscope.trace.formats.chrome.scan_bytes import (
    PADDING,
)
from stepscope.trace.formats.chrome.scan_events import (
    ENDED,
    FULL,
    HANDED_OVER,
    USED_UP,
    scan_events,
)
from stepscope.trace.formats.chrome.scan_words import COUNT, Words
from stepscope.trace.formats.chrome.scanned import (
    BETWEEN,
    DATA,
    END,
    INT64_COLUMNS,
    POSITION,
    ROWS,
    Scanned,
    Survey,
)
from stepscope.trace.problems import Problems
from stepscope.trace.source.content import Content, prefetched

_CUT = re.compile(
    rb'\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*"(?:ph|cat|name|pid|tid|ts|dur|id|args)"[ \t\r\n]*:)'
)
_CUT_WINDOW = 4 * 1024
_FIRST_WINDOW = 16 * 1024
_MOST_AT_ONCE = 512
_ROOM = 128 * 1024  # buffer sizes are multiples of this
_ROWS = 4096  # so are numbers of rows, unless these are fewer
_BYTES_EACH = 96  # of the smallest usual events


@dataclass(frozen=True)
class _Piece:
    """Part of the file: `data[:end]`, which starts at byte `offset`."""

    data: npt.NDArray[np.uint8]
    end: int
    offset: int

    @property
    def view(self) -> memoryview:
        """The data as a memoryview."""
        return self.data.data


class Scan:
    """The scan of one block, and how far it got."""

    def __init__(
        self,
        piece: _Piece,
        between: Between,
        buffers: Buffers,
        words: Words,
        scale: int = 1,
    ) -> None:
        rows = _room_for_rows(piece.end // (_BYTES_EACH // min(scale, 16)))
        self.piece = piece
        self.data = piece.data
        self.raw = piece.view
        self.end = piece.end
        self.offset = piece.offset
        self.between = between
        self.scale = scale
        self.buffers = buffers
        self.words = words
        self.columns = buffers.take((INT64_COLUMNS, rows), np.int64)
        self.views = buffers.take((rows, 2), np.int64)
        self.bytes = buffers.take((2, rows), np.uint8)
        self.numbers = buffers.take((2, rows), np.int32)
        self.state = np.array(
            [
                self.data.ctypes.data, self.end, 0, between.value, 0, rows,
                *(
                    column.ctypes.data
                    for column in (self.columns, self.views, *self.bytes, *self.numbers)
                ),
            ],
            np.int64,
        )  # fmt: skip
        self.status = HANDED_OVER
        self._mended: Mended | None = None
        self._survey: Survey | None = None
        self._surveyed_rows = -1

    def run(self) -> Scan:
        """Scans from the current state."""
        self._scan()
        while self._mends():
            self._scan()
        if self.status in (USED_UP, ENDED):
            self._take_survey()
        return self

    def _scan(self) -> None:
        self.status = scan_events(
            self.state.ctypes.data,
            self.words.names.table.ctypes.data,
            self.words.lanes.table.ctypes.data,
            self.words.patterns.table.ctypes.data,
        )

    def _mends(self) -> bool:
        """Whether there is more to scan now, as events were mended."""
        mended = self._mended
        if mended is None:
            at = int(self.state[POSITION])
            if self.status != HANDED_OVER or not can_mend(self.data, at, self.end):
                return False
            self._mended = mended = Mended(self.data, at, self.end, self.words.copies)
        elif self.status != USED_UP:
            return False
        if not mended.goes_on():
            self.status = USED_UP if self.position >= self.end else HANDED_OVER
            return False
        self._scans(mended)
        return True

    def _scans(self, mended: Mended) -> None:
        """Has the copy scanned."""
        self.data = mended.data
        self.state[DATA], self.state[END] = mended.data.ctypes.data, mended.end

    @property
    def position(self) -> int:
        """The position in the block up to which it was scanned."""
        position = int(self.state[POSITION])
        return position if self._mended is None else self._mended.original(position)

    def go_on_from(self, position: int, between: Between) -> None:
        """Goes on elsewhere in the block: at a position between events."""
        self.state[BETWEEN] = between.value
        if self._mended is None:
            self.state[POSITION] = position
        else:
            self._mended.go_on_from(int(self.state[POSITION]), position)
            self._scans(self._mended)

    def _take_survey(self) -> None:
        self._surveyed_rows = int(self.state[ROWS])
        if self._surveyed_rows:
            names, lanes = self.words.names.table, self.words.lanes.table
            self._survey = survey_of(self.state, int(names[COUNT]), int(lanes[COUNT]))

    def larger(self) -> Scan:
        """Scans the same block again from the start, with more room."""
        if int(self.state[ROWS]) < len(self.views):
            words = Words(self.words.scale * 4)
            return Scan(self.piece, self.between, self.buffers, words, self.scale).run()
        return Scan(self.piece, self.between, self.buffers, self.words, self.scale * 4).run()

    def scanned(self) -> Scanned:
        """Returns the events scanned so far."""
        self.words.catch_up()
        if self._surveyed_rows != int(self.state[ROWS]):
            self._take_survey()
        phases, flags = self.bytes
        name, lane = self.numbers
        mended, problems = self._mended, Problems()
        if mended is not None:
            problems = mended.problems(int(self.state[POSITION]), self.offset)
        return Scanned(
            self.state, self.data, self.offset, self.columns, self.views, phases, flags, name, lane,
            self.words.names, self.words.lanes, self._survey, mended, problems,
        )  # fmt: skip


@dataclass(frozen=True)
class _Finished:
    """A block that was read as far as possible without the next one."""

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
            if self.rows.survey is not None:  # all phases are known
                return len(self.rows) > 0
            return bool(self.rows.phases[: len(self.rows)].any())
        return bool(np.asarray(self.rows.phase).any())


class _ByHand:
    """The events of one block that were read by the tolerant reader."""

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


def _finish(scan: Scan, final: bool, fruitless: int) -> _Finished:
    """Reads a block to its end, using the tolerant reader wherever the scanner stops."""
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
    is_plain = last_rows < 0 and scanned_rows.survey is not None
    if is_plain or scan.bytes[0][max(last_rows, 0) : int(scan.state[ROWS])].any():
        by_hand.fruitless = 0
    rows: Rows | Scanned = scanned_rows
    if by_hand.events or by_hand.problems:
        rows = _merged(scanned_rows.rows(), by_hand)
    stop = min(scan.position, scan.end)
    between = Between(int(scan.state[BETWEEN]))
    return _Finished(
        rows, scan.words, stop, between, scan.status == ENDED, by_hand.fruitless, by_hand.given_up
    )


def _hand_over(scan: Scan, by_hand: _ByHand, final: bool, most: int) -> bool:
    """Reads a few events with the tolerant reader; False if it needs the next block."""
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
            scan.go_on_from(after, stretch.between)
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


class _Cutter:
    """Cuts the content where events seem to start, in a separate thread.

    Attributes:
        carry: The rest after the last cut, once there are no more pieces.
        enough: Set to stop producing pieces.
    """

    def __init__(self, data: bytes, offset: int, content: Content) -> None:
        self.carry = data
        self.enough = threading.Event()
        self._offset = offset
        self._content = content
        self._buffers = Buffers()

    def pieces(self) -> Iterator[_Piece]:
        """Yields the pieces in order, reusing the memory of earlier ones."""
        if 2 * len(self.carry) >= self._content.size:  # a block is there already
            data = _room_for(len(self.carry), self._buffers)
            yield self._cut(data, _fill_up(data, self.carry, 0))
        while not self.enough.is_set():
            carried = len(self.carry)
            data = _room_for(carried + self._content.size, self._buffers)
            end = carried + self._content.read_into(
                data.data[carried : carried + self._content.size]
            )
            _fill_up(data, self.carry, end - carried)
            if end == carried:
                self.carry = b""
                if end:
                    yield _Piece(data, end, self._offset)
                return
            yield self._cut(data, end)

    def _cut(self, data: npt.NDArray[np.uint8], end: int) -> _Piece:
        """Returns the piece up to the last cut, and carries over what is after it."""
        cut = _last_cut(data.data, end)
        self.carry = bytes(data.data[cut:end])
        piece = _Piece(data, cut, self._offset)
        self._offset += cut
        return piece


def _room_for_rows(count: int) -> int:
    """Returns for how many rows to have room: one of few numbers, so that buffers can be reused."""
    rows = count + 64
    return 1 << rows.bit_length() if rows < _ROWS else -(-rows // _ROWS) * _ROWS


def _room_for(size: int, buffers: Buffers) -> npt.NDArray[np.uint8]:
    """Returns a buffer of this size plus the padding that the scanner needs."""
    return buffers.take(-(-(size + PADDING) // _ROOM) * _ROOM, np.uint8)


def _fill_up(data: npt.NDArray[np.uint8], text: bytes | bytearray, size: int) -> int:
    """Puts text before `size` bytes, and padding after them; returns where the padding begins."""
    end = len(text) + size
    data[: len(text)] = np.frombuffer(text, np.uint8)
    data[end : end + PADDING] = 0
    return end


def piece_of(text: bytes | bytearray, offset: int, buffers: Buffers) -> _Piece:
    """Copies bytes into a buffer with the padding that the scanner needs."""
    data = _room_for(len(text), buffers)
    return _Piece(data, _fill_up(data, text, 0), offset)


def _last_cut(joined: memoryview, size: int) -> int:
    """Returns where the last event of a block seems to start, or the end of the block."""
    window = _CUT_WINDOW
    while True:
        start = max(0, size - window)
        cut = -1
        for match in _CUT.finditer(joined, start, size):
            cut = match.end()
        if cut >= 0:
            return cut
        if start == 0:
            return size
        window *= 16


class _Reader:
    """Processes scanned blocks in order, and rescans where a cut was wrong."""

    def __init__(self, offset: int, content: Content, take: Take, buffers: Buffers) -> None:
        self.content = content
        self.take = take
        self.buffers = buffers
        self.offset = offset  # of `carry`
        self.carry = bytearray()  # grows in place: an event can reach over very many blocks
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
        """Processes the next block."""
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
        finished = _finish(scan, final, self._fruitless)
        if len(finished.rows) or not isinstance(finished.rows, Scanned):
            self.take(finished.rows)
        if finished.has_events:
            self.content.recognised()
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
        data: Bytes already read.
        offset: Their offset in the uncompressed file.
        content: The content after them.
        take: Called with the events, in order.
        threads: Number of scanning threads. Default: one per processor, at most 8.
    """
    count = threads or min(os.cpu_count() or 1, 8)
    buffers = Buffers()
    reader = _Reader(offset, content, take, buffers)
    cutter = _Cutter(data, offset, content)
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
