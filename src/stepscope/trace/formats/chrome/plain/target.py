"""The memory that compiled code fills with the columns of plain blocks.

There are two forms. *Spread*, each value is at its row, as columns of Polars need it. *Dense*, the
values of a column follow each other without gaps for nulls, and text is as in a page of Parquet, as
the store needs it; then there is memory for the text of one block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome.phases import (
    COUNTER_ROLE,
    EVENT_ROLE,
    FLOW_ROLE,
    INSTANT_ROLE,
)
from stepscope.trace.formats.chrome.plain import layout
from stepscope.trace.formats.chrome.plain.fill import LENGTH_BYTES, fill
from stepscope.trace.formats.chrome.plain_meaning import Meaning
from stepscope.trace.formats.chrome.rows import INT64_MAX
from stepscope.trace.formats.chrome.scanner.scan_bytes import PADDING
from stepscope.trace.formats.chrome.scanner.scanned import INLINE_BYTES, Scanned, Survey

# Sizes of large pooled buffers are multiples of this, others powers of two below; what is not used
# costs nothing.
_TEXT_ROOM = 7 << 19


@dataclass(frozen=True)
class PlainBlock:
    """A plain block with what its numbers mean."""

    scanned: Scanned
    meaning: Meaning
    survey: Survey

    def most_text(self, role: int) -> int:
        """How many bytes the arguments of its events with a role can have in a page."""
        survey = self.survey
        return survey.text_bytes[role] + survey.rows[role] * (LENGTH_BYTES + INLINE_BYTES)


class _Memory:
    """Arrays from a pool, or new ones."""

    def __init__(self, buffers: Buffers | None) -> None:
        self._buffers = buffers

    @property
    def is_pooled(self) -> bool:
        return self._buffers is not None

    def rows(self, count: int, dtype: Any, columns: int | None = None) -> npt.NDArray[Any]:
        """Returns an array for columns with so many rows."""
        # Powers of two, so that buffers can be reused.
        room = count if self._buffers is None else 1 << count.bit_length()
        return self._take(room if columns is None else (columns, room), dtype)

    def text(self, blocks: Sequence[PlainBlock], role: int) -> npt.NDArray[np.uint8]:
        """Returns an array for the arguments of all blocks; if pooled, of each."""
        if self._buffers is None:
            return self._take(sum(block.survey.text_bytes[role] for block in blocks) + PADDING)
        room = max(block.most_text(role) for block in blocks) + PADDING
        power = 1 << room.bit_length()
        return self._take(power if power < _TEXT_ROOM else -(-room // _TEXT_ROOM) * _TEXT_ROOM)

    def views(self, count: int) -> npt.NDArray[np.int64]:
        """Returns an array for string views; an empty one if pooled, as dense text has none."""
        return np.empty((0 if self.is_pooled else count, 2), np.int64)

    def _take(self, shape: int | tuple[int, ...], dtype: Any = np.uint8) -> npt.NDArray[Any]:
        return np.empty(shape, dtype) if self._buffers is None else self._buffers.take(shape, dtype)


class OtherRows:
    """The columns of instants, of counter samples, or of ends of arrows.

    Attributes:
        ints: Names and lanes.
        views: The arguments as string views; unused if dense.
        text: What they refer to; if dense, the arguments of the latest block.
        text_bits: Validity bits of the arguments; if dense, of the latest block.
    """

    def __init__(self, role: int, blocks: Sequence[PlainBlock], memory: _Memory) -> None:
        self.role = role
        self.count = count = sum(block.survey.rows[role] for block in blocks)
        self.ints = memory.rows(count, np.int32, 2)
        self.times, self.ids = memory.rows(count, np.int64), memory.rows(count, np.int64)
        self.phases = memory.rows(count, np.uint8)
        self.views, self.text = memory.views(count), memory.text(blocks, role)
        self.id_bits, self.text_bits = _bits(count), _bits(count)

    def describe_in(self, fields: npt.NDArray[np.int64]) -> None:
        """Writes the addresses of all arrays to the fields of this table."""
        for field, array in (
            (layout.NAME_COLUMN, self.ints[0]),
            (layout.LANE_COLUMN, self.ints[1]),
            (layout.TIME_COLUMN, self.times),
            (layout.PHASE_COLUMN, self.phases),
            (layout.ID_COLUMN, self.ids),
            (layout.ID_BITS, self.id_bits),
            (layout.VIEW_COLUMN, self.views),
            (layout.TEXT, self.text),
            (layout.TEXT_BITS, self.text_bits),
        ):
            fields[field] = array.ctypes.data

    def begin_block(self, fields: npt.NDArray[np.int64], rows: int) -> None:
        """Has the text of the next block written from the beginning."""
        self.text_bits = _bits(rows)
        fields[layout.TEXT_BITS] = self.text_bits.ctypes.data
        fields[layout.TEXT_FROM] = fields[layout.ROWS_FILLED]
        fields[layout.TEXT_BYTES_FILLED] = fields[layout.TEXTS_FILLED] = 0


class Target:
    """The columns of consecutive plain blocks.

    Created in file order; everything else can be called in any thread, but in one at a time.

    Args:
        first_event: Number of their first event.
        buffers: Pool for the arrays of dense columns, which are short-lived. None for spread ones,
            which stay in memory.

    Attributes:
        longs: Columns of 64 bits of complete events (`layout`).
        ints: Columns of 32 bits.
        views: Arguments as string views; unused if dense.
        text: What these refer to; if dense, the arguments of the latest block.
        text_bits: Validity bits of the arguments; if dense, of the latest block.
        flows: Ends of arrows.
        gpu_lanes: GPU lanes, with device and stream (-1: none) of their first event.
    """

    def __init__(
        self, blocks: Sequence[PlainBlock], first_event: int, buffers: Buffers | None
    ) -> None:
        memory = _Memory(buffers)
        self._is_dense = memory.is_pooled
        self.events = count = sum(block.survey.rows[EVENT_ROLE] for block in blocks)
        self.longs = memory.rows(count, np.int64, layout.EVENT_LONG_COLUMNS)
        self.ints = memory.rows(count, np.int32, layout.EVENT_INT_COLUMNS)
        self.codes = memory.rows(count, np.uint8)
        # Arguments are copied, so as not to keep all text of the blocks for them.
        self.views, self.text = memory.views(count), memory.text(blocks, EVENT_ROLE)
        self.bits = np.zeros((layout.EVENT_BIT_COLUMNS, (count + 7) // 8), np.uint8)
        self.text_bits = _bits(count)
        self.instants, self.counters, self.flows = self._others = [
            OtherRows(role, blocks, memory) for role in (INSTANT_ROLE, COUNTER_ROLE, FLOW_ROLE)
        ]
        self.latest_ns = -INT64_MAX
        self.gpu_lanes: dict[int, tuple[int, int]] = {}
        self._fields = self._described(first_event)

    def _described(self, first_event: int) -> npt.NDArray[np.int64]:
        fields = np.zeros(layout.TARGET_FIELDS, np.int64)
        for field, value in (
            (layout.IS_DENSE, int(self._is_dense)),
            (layout.EVENT_ROOM, self.codes.size),
            (layout.BITS_EACH, self.bits.shape[1]),
            (layout.FIRST_EVENT, first_event),
            (layout.EVENT_LONGS, self.longs.ctypes.data),
            (layout.EVENT_INTS, self.ints.ctypes.data),
            (layout.EVENT_CODES, self.codes.ctypes.data),
            (layout.EVENT_VIEWS, self.views.ctypes.data),
            (layout.EVENT_TEXT, self.text.ctypes.data),
            (layout.EVENT_BITS, self.bits.ctypes.data),
            (layout.ARGS_BITS, self.text_bits.ctypes.data),
        ):
            fields[field] = value
        for other in self._others:
            other.describe_in(_fields_of(other, fields))
        return fields

    def fill(self, block: PlainBlock) -> None:
        """Writes the rows of the next block."""
        fields, lane_id = self._fields, block.meaning.lane_id
        first_of_lane = np.full((len(lane_id), 2), layout.NO_LANE, np.int64)
        fields[layout.FIRST_OF_LANE] = first_of_lane.ctypes.data
        if self._is_dense:
            self.text_bits = _bits(block.survey.rows[EVENT_ROLE])
            fields[layout.ARGS_BITS] = self.text_bits.ctypes.data
            fields[layout.ARGS_FROM] = fields[layout.EVENTS_FILLED]
            fields[layout.EVENT_BYTES_FILLED] = fields[layout.ARGS_FILLED] = 0
            for other in self._others:
                other.begin_block(_fields_of(other, fields), block.survey.rows[other.role])
        table = block.meaning.table()
        latest_ns: int = fill(
            block.scanned.block.ctypes.data, table.ctypes.data, fields.ctypes.data
        )
        self.latest_ns = max(self.latest_ns, latest_ns)
        for lane in np.flatnonzero(first_of_lane[:, 0] != layout.NO_LANE).tolist():
            device, stream = first_of_lane[lane].tolist()
            self.gpu_lanes.setdefault(int(lane_id[lane]), (device, stream))

    def filled(self, field: int, other: OtherRows | None = None) -> int:
        """How much of something is filled (`layout`): of events, or of other rows."""
        return int(self._fields[field] if other is None else _fields_of(other, self._fields)[field])


def _fields_of(other: OtherRows, fields: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    first = layout.OTHERS + layout.OTHER_FIELDS * (other.role - INSTANT_ROLE)
    return fields[first : first + layout.OTHER_FIELDS]


def _bits(count: int) -> npt.NDArray[np.uint8]:
    return np.zeros((count + 7) // 8, np.uint8)
