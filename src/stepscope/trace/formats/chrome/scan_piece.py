"""The scan of one piece of the list of events with the compiled scanner."""

from __future__ import annotations

import numpy as np

from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome.scanner.repaired import RepairedBlock, can_repair
from stepscope.trace.formats.chrome.scanner.scan_events import (
    HANDED_OVER,
    USED_UP,
    scan_events,
)
from stepscope.trace.formats.chrome.scanner.scan_pieces import Piece
from stepscope.trace.formats.chrome.scanner.scan_words import Words
from stepscope.trace.formats.chrome.scanner.scanned import (
    BETWEEN,
    DATA,
    END,
    INT64_COLUMNS,
    POSITION,
    ROWS,
    Scanned,
)
from stepscope.trace.formats.chrome.tolerant.event_text import Between
from stepscope.trace.problems import Problems

_ROWS = 4096  # numbers of rows are multiples of this, unless these are fewer
_BYTES_EACH = 96  # of the smallest usual events


class Scan:
    """The scan of one piece, and how far it got."""

    def __init__(
        self,
        piece: Piece,
        between: Between,
        buffers: Buffers,
        words: Words,
        scale: int = 1,
    ) -> None:
        rows = _row_capacity(piece.end // (_BYTES_EACH // min(scale, 16)))
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
            self.words.names.table.ctypes.data,
            self.words.lanes.table.ctypes.data,
            self.words.patterns.table.ctypes.data,
        )

    def _has_repaired(self) -> bool:
        """Whether there is more to scan now, as events were repaired."""
        repaired = self._repaired
        if repaired is None:
            at = int(self.state[POSITION])
            if self.status != HANDED_OVER or not can_repair(self.data, at, self.end):
                return False
            self._repaired = repaired = RepairedBlock(self.data, at, self.end, self.words.copies)
        elif self.status != USED_UP:
            return False
        if not repaired.copy_next():
            self.status = USED_UP if self.position >= self.end else HANDED_OVER
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
        """Scans the same piece again from the start, with more room."""
        if int(self.state[ROWS]) < len(self.views):
            words = Words(self.words.scale * 4)
            return Scan(self.piece, self.between, self.buffers, words, self.scale).run()
        return Scan(self.piece, self.between, self.buffers, self.words, self.scale * 4).run()

    def scanned(self) -> Scanned:
        """Returns the events scanned so far."""
        self.words.catch_up()
        phases, flags = self.bytes
        name, lane = self.numbers
        repaired, problems = self._repaired, Problems()
        if repaired is not None:
            problems = repaired.problems(int(self.state[POSITION]), self.offset)
        return Scanned(
            self.state, self.data, self.offset, self.columns, self.views, phases, flags, name, lane,
            self.words.names, self.words.lanes, repaired, problems,
        )  # fmt: skip


def _row_capacity(count: int) -> int:
    """Returns how many rows to allocate: one of few numbers, so that buffers can be reused."""
    rows = count + 64
    return 1 << rows.bit_length() if rows < _ROWS else -(-rows // _ROWS) * _ROWS
