"""The scan of one piece of the list of events with the compiled scanner.

A block is plain if nothing in it needs special treatment, which is true for nearly all blocks of
nearly all files. `plain/fill.py` creates its columns in one pass. Whether it is plain, and what is
in it, does not depend on earlier blocks, and is found in the thread that scans it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome.phases import (
    EVENT_ROLE,
    FLOW_ROLE,
    INSTANT_ROLE,
    METADATA_ROLE,
    ROLE_OF_PHASE,
)
from stepscope.trace.formats.chrome.plain.layout import (
    LANES,
    LENGTH,
    NAMES,
    ROLES,
    SURVEY_FIELDS,
    TEXT_BYTES,
)
from stepscope.trace.formats.chrome.rows import HAS_DURATION, HAS_TIME, INT64_MAX
from stepscope.trace.formats.chrome.scanner.repaired import RepairedBlock, can_repair
from stepscope.trace.formats.chrome.scanner.scan_events import (
    ENDED,
    HANDED_OVER,
    USED_UP,
    scan_events,
)
from stepscope.trace.formats.chrome.scanner.scan_pieces import Piece
from stepscope.trace.formats.chrome.scanner.scan_words import COUNT, Words
from stepscope.trace.formats.chrome.scanner.scanned import (
    BETWEEN,
    COLUMNS,
    DATA,
    DURATION,
    END,
    FLAGS,
    INLINE_BYTES,
    INT64_COLUMNS,
    LANE,
    NAME,
    PHASES,
    POSITION,
    ROOM,
    ROWS,
    TIME,
    VIEWS,
    Scanned,
    Survey,
)
from stepscope.trace.formats.chrome.tolerant.event_text import Between
from stepscope.trace.machine.helpers import jit_inline
from stepscope.trace.machine.instructions import (
    Data,
    Ints,
    Longs,
    byte_at,
    int_at,
    long_at,
    put_byte,
    put_int,
    put_long,
)
from stepscope.trace.machine.jit import jit
from stepscope.trace.problems import Problems

_ROWS = 4096  # numbers of rows are multiples of this, unless these are fewer
_BYTES_EACH = 96  # of the smallest usual events


@jit_inline
def _note(seen: Data, distinct: Ints, count: int, number: int) -> int:
    """Adds a number to the distinct ones if it is new, and returns how many there are."""
    if byte_at(seen, number) == 0:
        put_byte(seen, number, 1)
        put_int(distinct, count, number)
        return count + 1
    return count


@jit
def _survey(
    block: Longs, role_of: Data, seen_names: Data, names: Ints, seen_lanes: Data, lanes: Ints,
    counts: Longs,
) -> bool:  # fmt: skip
    """Counts what is in a block; false if the block is not plain."""
    phases, flags, views = long_at(block, PHASES), long_at(block, FLAGS), long_at(block, VIEWS)
    name, lane = long_at(block, NAME), long_at(block, LANE)
    times = long_at(block, COLUMNS) + 8 * TIME * long_at(block, ROOM)
    durations = long_at(block, COLUMNS) + 8 * DURATION * long_at(block, ROOM)
    distinct_names = distinct_lanes = 0
    for row in range(long_at(block, ROWS)):
        role, has = byte_at(role_of, byte_at(phases, row)), byte_at(flags, row)
        put_long(counts, role, long_at(counts, role) + 1)
        if role == METADATA_ROLE:
            continue
        if (has & HAS_TIME) == 0:
            return False
        if role == EVENT_ROLE:
            start, dur = long_at(times, row), long_at(durations, row)
            if (has & HAS_DURATION) == 0 or dur < 0 or (start > 0 and dur > INT64_MAX - start):
                return False
            if start == 0 and dur == 0:
                return False  # might be GPU work that did not run
        elif not (INSTANT_ROLE <= role <= FLOW_ROLE):
            return False
        length = long_at(views, 2 * row) & LENGTH
        if length > INLINE_BYTES:
            put_long(counts, TEXT_BYTES + role, long_at(counts, TEXT_BYTES + role) + length)
        distinct_names = _note(seen_names, names, distinct_names, int_at(name, row))
        distinct_lanes = _note(seen_lanes, lanes, distinct_lanes, int_at(lane, row))
    put_long(counts, NAMES, distinct_names)
    put_long(counts, LANES, distinct_lanes)
    return True


def survey_of(block: npt.NDArray[np.int64], names: int, lanes: int) -> Survey | None:
    """Returns the survey of a block; None if the block is not plain.

    Args:
        block: Description of the block (`scanned`).
        names: Number of names that its rows can refer to.
    """
    counts = np.zeros(SURVEY_FIELDS, np.int64)
    seen_names, seen_lanes = np.zeros(names, np.uint8), np.zeros(lanes, np.uint8)
    used_names, used_lanes = np.empty(names, np.int32), np.empty(lanes, np.int32)
    addressed = (block, ROLE_OF_PHASE, seen_names, used_names, seen_lanes, used_lanes, counts)
    if not _survey(*(array.ctypes.data for array in addressed)):
        return None
    found = counts.tolist()
    return Survey(
        rows=found[:ROLES],
        text_bytes=found[TEXT_BYTES : TEXT_BYTES + ROLES],
        names=used_names[: found[NAMES]],
        lanes=used_lanes[: found[LANES]],
    )


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
        self._survey: Survey | None = None
        self._surveyed_rows = -1

    def run(self) -> Scan:
        """Scans from the current state."""
        self._scan()
        while self._has_repaired():
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
        """Goes on elsewhere in the piece: at a position between events."""
        self.state[BETWEEN] = between.value
        if self._repaired is None:
            self.state[POSITION] = position
        else:
            self._repaired.continue_from(int(self.state[POSITION]), position)
            self._scan_copy(self._repaired)

    def _take_survey(self) -> None:
        self._surveyed_rows = int(self.state[ROWS])
        if self._surveyed_rows:
            names, lanes = self.words.names.table, self.words.lanes.table
            self._survey = survey_of(self.state, int(names[COUNT]), int(lanes[COUNT]))

    def larger(self) -> Scan:
        """Scans the same piece again from the start, with more room."""
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
        repaired, problems = self._repaired, Problems()
        if repaired is not None:
            problems = repaired.problems(int(self.state[POSITION]), self.offset)
        return Scanned(
            self.state, self.data, self.offset, self.columns, self.views, phases, flags, name, lane,
            self.words.names, self.words.lanes, self._survey, repaired, problems,
        )  # fmt: skip


def _row_capacity(count: int) -> int:
    """Returns how many rows to allocate: one of few numbers, so that buffers can be reused."""
    rows = count + 64
    return 1 << rows.bit_length() if rows < _ROWS else -(-rows // _ROWS) * _ROWS
