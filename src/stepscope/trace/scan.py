"""The fast reader of the list of events: blocks, threads, and the scanner with its fall-back.

A file is cut into blocks where an event seems to begin. Threads scan the blocks, each on the
assumption that its cut was right. Then the blocks are taken in order: a block whose predecessor
ended exactly at the cut was scanned rightly; any other is scanned again, joined to what its
predecessor left over. So a wrong guess (a string that looks like the space between two events)
costs time, never a row.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrow_columns import strings_of
from stepscope.trace.buffers import Buffers
from stepscope.trace.document import Ending, Take, byte_offsets, decode
from stepscope.trace.event_text import Between, Outcome, Stretch, read_stretch
from stepscope.trace.problems import Problems
from stepscope.trace.rows import Event, Rows, Scanned, Vocabulary, rows_from_events
from stepscope.trace.scan_bytes import PADDING
from stepscope.trace.scan_events import (
    BETWEEN,
    BYTES,
    COLUMNS,
    CORRELATION,
    DEVICE,
    DURATION,
    ENDED,
    EXTERNAL,
    FLOW,
    FULL,
    HANDED_OVER,
    PLACE,
    POSITION,
    ROWS,
    STREAM,
    TIME,
    scan_events,
)
from stepscope.trace.scan_words import Words

_CUT = re.compile(
    rb'\}[ \t\r\n]*,[ \t\r\n]*(?=\{[ \t\r\n]*"(?:ph|cat|name|pid|tid|ts|dur|id|args)"[ \t\r\n]*:)'
)
_CUT_WINDOW = 64 * 1024
_FIRST_WINDOW = 16 * 1024
_MOST_AT_ONCE = 512
_ROOM = 256 * 1024  # buffers come in multiples of this


@dataclass(frozen=True)
class _Piece:
    """A stretch of the file: `data[:end]`, which begins at byte `place`."""

    data: npt.NDArray[np.uint8]
    end: int
    place: int

    @property
    def view(self) -> memoryview:
        """The same bytes, for what wants bytes."""
        return self.data.data


class Scan:
    """One block, what the scanner made of it, and how far it came."""

    def __init__(
        self,
        piece: _Piece,
        between: Between,
        buffers: Buffers,
        words: Words,
        scale: int = 1,
    ) -> None:
        # Room for events of a usual size; powers of two, so that buffers fit again.
        rows = 1 << (piece.end // (128 // min(scale, 16)) + 64).bit_length()
        self.piece = piece
        self.data = piece.data
        self.raw = piece.view
        self.end = piece.end
        self.place = piece.place
        self.between = between
        self.scale = scale
        self.buffers = buffers
        self.words = words
        self.state = np.array([0, between.value, 0], np.int64)
        self.columns = buffers.take((COLUMNS, rows), np.int64)
        self.views = buffers.take((rows, 2), np.int64)
        self.phases = buffers.take(rows, np.uint8)
        self.flags = buffers.take(rows, np.uint32)
        self.name = buffers.take((1, rows), np.int32)[0]
        self.lane = buffers.take((rows, 1), np.int32)[:, 0]
        self.status = HANDED_OVER

    def run(self) -> Scan:
        """Scans from the state on."""
        self.status = scan_events(
            self.data.ctypes.data, self.end, self.state, self.columns, self.views, self.phases,
            self.flags, self.name, self.lane,
            self.words.names.table.ctypes.data, self.words.lanes.table.ctypes.data,
        )  # fmt: skip
        return self

    def larger(self) -> Scan:
        """The same block from its beginning, with more room."""
        if int(self.state[ROWS]) < len(self.phases):
            words = Words(self.words.scale * 4)
            return Scan(self.piece, self.between, self.buffers, words, self.scale).run()
        return Scan(self.piece, self.between, self.buffers, self.words, self.scale * 4).run()

    def rows(self) -> Rows:
        """What was scanned so far."""
        self.words.catch_up()
        count = int(self.state[ROWS])
        columns, views = self.columns[:, :count], self.views[:count].view(np.uint32)
        return Rows(
            phase=self.phases[:count],
            flags=self.flags[:count],
            name=self.name[:count],
            lane=self.lane[:count],
            time_ns=columns[TIME],
            dur_ns=columns[DURATION],
            flow_id=columns[FLOW].view(np.uint64),
            correlation=columns[CORRELATION].view(np.uint64),
            external_id=columns[EXTERNAL].view(np.uint64),
            device=columns[DEVICE],
            stream=columns[STREAM],
            bytes=columns[BYTES],
            place=columns[PLACE] + self.place,
            args=strings_of(
                "args", self.data, views, np.packbits(views[:, 0] > 0, bitorder="little")
            ),
            names=self.words.names,
            lanes=self.words.lanes,
            scanned=Scanned(self.columns, self.views.view(np.uint32), self.data),
        )


@dataclass(frozen=True)
class _Finished:
    """A block that was read as far as it can be without the next one."""

    rows: Rows
    words: Words
    stop: int
    between: Between
    ended: bool


class _ByHand:
    """Events of one block that the tolerant reader took."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.places: list[int] = []
        self.problems = Problems()

    def add(self, stretch: Stretch, text: str, place: int) -> int:
        """Keeps a stretch; returns how many bytes it used."""
        offsets = byte_offsets(text)

        def moved(position: int) -> int:
            return place + (position if offsets is None else int(offsets[position]))

        self.events += stretch.events
        self.places += [moved(position) for position in stretch.places]
        self.problems.merge(stretch.problems.moved(moved))
        return moved(stretch.stop) - place


def _finish(scan: Scan, final: bool) -> _Finished:
    """Reads a block to its end, with the tolerant reader wherever the scanner stops."""
    by_hand = _ByHand()
    most, last_rows = 1, -1
    while scan.status in (HANDED_OVER, FULL):
        if scan.status == FULL:
            scan = scan.larger()
            by_hand, most, last_rows = _ByHand(), 1, -1
            continue
        scanned = int(scan.state[ROWS])
        most = min(most * 2, _MOST_AT_ONCE) if scanned - last_rows < 4 * most else 1
        last_rows = scanned
        if not _hand_over(scan, by_hand, final, most):
            break
    rows = _merged(scan.rows(), by_hand)
    stop = min(int(scan.state[POSITION]), scan.end)
    between = Between(int(scan.state[BETWEEN]))
    return _Finished(rows, scan.words, stop, between, scan.status == ENDED)


def _hand_over(scan: Scan, by_hand: _ByHand, final: bool, most: int) -> bool:
    """Lets the tolerant reader take a few events; False where it needs the next block."""
    at = int(scan.state[POSITION])
    between = Between(int(scan.state[BETWEEN]))
    window = _FIRST_WINDOW * most
    while True:
        whole = at + window >= scan.end
        text = decode(bytes(scan.raw[at : min(at + window, scan.end)]))
        stretch = read_stretch(text, 0, between, final and whole, most)
        ended = stretch.outcome is Outcome.END
        if stretch.stop > 0 or ended:
            scan.state[POSITION] = at + by_hand.add(stretch, text, scan.place + at)
            scan.state[BETWEEN] = stretch.between.value
            if ended:
                scan.status = ENDED
            else:
                scan.run()
            return True
        if whole:
            return False
        window *= 8


def _merged(rows: Rows, by_hand: _ByHand) -> Rows:
    """The rows of the scanner and of the tolerant reader, in the order of the file."""
    if not by_hand.events:
        rows.problems.merge(by_hand.problems)
        return rows
    other = rows_from_events(by_hand.events, by_hand.places, by_hand.problems)
    order = np.argsort(np.concatenate([rows.place, other.place]), kind="stable")

    def both(column: str, shift: int = 0) -> npt.NDArray[np.generic]:
        first, second = getattr(rows, column), getattr(other, column)
        return np.concatenate([first, second + shift] if shift else [first, second])[order]

    names, lanes = len(rows.names), len(rows.lanes)
    shifts = {"name": names, "lane": lanes}
    plain = (
        "phase", "flags", "name", "lane", "time_ns", "dur_ns", "flow_id", "correlation",
        "external_id", "device", "stream", "bytes", "place",
    )  # fmt: skip
    columns = {column: both(column, shifts.get(column, 0)) for column in plain}
    return Rows(
        **columns,  # type: ignore[arg-type]
        args=pl.concat([rows.args, other.args]).gather(order),
        names=Vocabulary(rows.names.pairs + other.names.pairs),
        lanes=Vocabulary(rows.lanes.pairs + other.lanes.pairs),
        problems=by_hand.problems,
    )


class _Cutter:
    """Cuts a stream where events seem to begin.

    Attributes:
        carry: What was read but stands behind the last cut.
    """

    def __init__(self, data: bytes, place: int, blocks: Iterator[bytes], buffers: Buffers) -> None:
        self.carry = data
        self._place = place
        self._blocks = blocks
        self._buffers = buffers

    def next(self) -> _Piece | None:
        """The next piece; None at the end of the file."""
        block = next(self._blocks, None)
        if block is None:
            last, self.carry = self.carry, b""
            return _piece([last], self._place, self._buffers) if last else None
        piece = _piece([self.carry, block], self._place, self._buffers)
        cut = _last_cut(piece.view, piece.end)
        self.carry = bytes(piece.view[cut : piece.end])
        self._place += cut
        return replace(piece, end=cut)


def _piece(parts: list[bytes], place: int, buffers: Buffers) -> _Piece:
    """Joins bytes, with the padding that the scanner wants."""
    size = sum(map(len, parts))
    room = -(-(size + PADDING) // _ROOM) * _ROOM
    data = buffers.take(room, np.uint8)
    at = 0
    for part in parts:
        data[at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    data[at : at + PADDING] = 0
    return _Piece(data, size, place)


def _last_cut(joined: memoryview, size: int) -> int:
    """Where the last event of a block seems to begin; its end where none does."""
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
    """Takes scanned blocks in order, and mends where a guess was wrong."""

    def __init__(self, place: int, take: Take, buffers: Buffers) -> None:
        self.take = take
        self.buffers = buffers
        self.place = place  # of what is carried
        self.carry = b""
        self.wanted = 0  # do not try again before so much is at hand
        self.between = Between.START
        self.ended = False
        self._words: list[Words] = []  # that no scan works with

    def words(self) -> Words:
        """Words for a scan: those of an earlier one, which knows most of what will come."""
        return self._words.pop() if self._words else Words()

    def next(self, scan: Scan) -> None:
        """Takes the next block."""
        if self.carry or scan.between is not self.between:
            self.carry += bytes(scan.raw[: scan.end])
            self._words.append(scan.words)
            if len(self.carry) < self.wanted:
                return
            scan = self._again()
        self._accept(scan, final=False)

    def finish(self) -> None:
        """Takes what is left when the file is over."""
        if self.carry and not self.ended:
            self._accept(self._again(), final=True)

    def _again(self) -> Scan:
        piece = _piece([self.carry], self.place, self.buffers)
        return Scan(piece, self.between, self.buffers, self.words()).run()

    def _accept(self, scan: Scan, final: bool) -> None:
        finished = _finish(scan, final)
        if len(finished.rows) or finished.rows.problems:
            self.take(finished.rows)
        self._words.append(finished.words)
        self.carry = bytes(scan.raw[finished.stop : scan.end])
        self.place = scan.place + finished.stop
        self.wanted = 0 if finished.stop else 2 * len(self.carry)
        self.between = finished.between
        self.ended = finished.ended


def read_events_compiled(
    data: bytes, place: int, blocks: Iterator[bytes], take: Take, threads: int | None = None
) -> Ending:
    """Reads the list of events from its opening bracket on, with the compiled scanner.

    Args:
        data: Bytes at hand that follow the bracket.
        place: Their offset in the uncompressed file.
        blocks: What follows them.
        take: Receives the events in order.
        threads: How many scan at once; None: one for each processor, at most 8.
    """
    count = threads or min(os.cpu_count() or 1, 8)
    buffers = Buffers()
    reader = _Reader(place, take, buffers)
    cutter = _Cutter(data, place, blocks, buffers)
    waiting: deque[Future[Scan]] = deque()
    first = True
    with ThreadPoolExecutor(count, thread_name_prefix="stepscope-scan") as pool:
        exhausted = False
        while waiting or not exhausted:
            while not exhausted and not reader.ended and len(waiting) < count + 1:
                piece = cutter.next()
                if piece is None:
                    exhausted = True
                    break
                between = Between.START if first else Between.AFTER_COMMA
                first = False
                waiting.append(pool.submit(Scan(piece, between, buffers, reader.words()).run))
                del piece
            if not waiting:
                break
            scan = waiting.popleft().result()
            if reader.ended:
                reader.carry += bytes(scan.raw[: scan.end])
            else:
                reader.next(scan)
            del scan  # its buffers may be used again
    if reader.ended:
        return Ending(reader.carry + cutter.carry, reader.place, closed=True)
    reader.finish()
    return Ending(reader.carry, reader.place, closed=reader.ended)
