"""The memory that compiled code fills with the columns of plain blocks.

There are two forms. *Spread*, each value is at its row, as columns of Polars need it. *Dense*, the
values of a column follow each other without gaps for nulls, and text is as in a page of Parquet,
as the store needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.arrow_columns import numbers_of, strings_of
from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome import plain_layout as layout
from stepscope.trace.formats.chrome.phases import INSTANT_ROLE
from stepscope.trace.formats.chrome.plain_fill import LENGTH_BYTES, fill
from stepscope.trace.formats.chrome.plain_meaning import Meaning
from stepscope.trace.formats.chrome.rows import INT64_MAX
from stepscope.trace.formats.chrome.scan_bytes import PADDING
from stepscope.trace.formats.chrome.scanned import INLINE_BYTES, Scanned, Survey
from stepscope.trace.schema import INSTANTS

_TEXT_ROOM = (
    8 << 20
)  # sizes of pooled buffers are multiples of this; what is not used costs nothing
_NO_MOMENTS = pl.DataFrame(schema=INSTANTS)


@dataclass(frozen=True)
class PlainBlock:
    """A plain block with what its numbers mean."""

    scanned: Scanned
    meaning: Meaning
    survey: Survey

    @property
    def most_text(self) -> int:
        """How many bytes the arguments of its events can have in a page."""
        return self.survey.event_bytes + self.survey.events * (LENGTH_BYTES + INLINE_BYTES)


class Target:
    """The columns of consecutive plain blocks.

    Created in file order; everything else can be called in any thread.

    Args:
        blocks: The blocks.
        first_event: Number of their first event.
        buffers: Pool for the arrays of dense columns, which are short-lived. None for spread ones,
            which stay in memory.

    Attributes:
        longs: The columns of 64 bits (`plain_layout`).
        ints: The columns of 32 bits.
        codes: The category code of each event.
        bits: Validity bits.
        views: The arguments as string views; unused if dense.
        text: What they refer to; if dense, the arguments of the latest block.
        args_bits: If dense, the validity bits of the arguments of the latest block.
        flow_longs: Identifiers and times of flows.
        flow_ints: Names and lanes of flows.
        flow_phases: The phase of each flow, as a character code.
        flow_bits: Validity bits of the identifiers of flows.
        latest_ns: The latest end of an event.
        gpu_lanes: GPU lanes, with device and stream (-1: none) of their first event.
    """

    def __init__(
        self, blocks: Sequence[PlainBlock], first_event: int, buffers: Buffers | None
    ) -> None:
        self._is_dense = buffers is not None
        self._first_event = first_event
        surveys = [block.survey for block in blocks]
        self.events = sum(survey.events for survey in surveys)
        self.flows = sum(survey.flows for survey in surveys)
        self._moments = sum(survey.moments for survey in surveys)
        self._moment_bytes = sum(survey.moment_bytes for survey in surveys)
        take = np.empty if buffers is None else buffers.take
        # Powers of two, so that buffers can be reused.
        room = self.events if buffers is None else 1 << self.events.bit_length()
        flow_room = self.flows if buffers is None else 1 << self.flows.bit_length()
        self.longs = take((layout.EVENT_LONG_COLUMNS, room), np.int64)
        self.ints = take((layout.EVENT_INT_COLUMNS, room), np.int32)
        self.codes = take((room,), np.uint8)
        if buffers is None:
            # Arguments are copied, so as not to keep all text of the blocks for them.
            self.views = np.empty((room, 2), np.int64)
            text = sum(survey.event_bytes for survey in surveys) + PADDING
        else:
            self.views = np.empty((0, 2), np.int64)
            most = max(block.most_text for block in blocks) + PADDING
            text = -(-most // _TEXT_ROOM) * _TEXT_ROOM
        self.text = take(text, np.uint8)
        self.flow_longs = take((2, flow_room), np.int64)
        self.flow_ints = take((2, flow_room), np.int32)
        self.latest_ns = -INT64_MAX
        self.gpu_lanes: dict[int, tuple[int, int]] = {}

    def begin(self) -> None:
        """Prepares the rest of the memory."""
        moments = self._moments
        self.bits = np.zeros((layout.EVENT_BIT_COLUMNS, (self.events + 7) // 8), np.uint8)
        self.flow_phases, self.flow_bits = np.empty(self.flows, np.uint8), _bits(self.flows)
        self._moment_times = np.empty(moments, np.int64)
        self._moment_ints = np.empty((2, moments), np.int32)
        self._moment_roles, self._moment_bits = np.empty(moments, np.uint8), _bits(moments)
        self._moment_views = np.empty((moments, 2), np.int64)
        self._moment_text = np.empty(self._moment_bytes + PADDING, np.uint8)
        self._fields = fields = np.zeros(layout.TARGET_FIELDS, np.int64)
        for field, value in (
            (layout.EVENT_ROOM, self.codes.size),
            (layout.FLOW_ROOM, self.flow_ints.shape[1]),
            (layout.MOMENT_ROOM, moments),
            (layout.BITS_EACH, self.bits.shape[1]),
            (layout.FIRST_EVENT, self._first_event),
            (layout.IS_DENSE, int(self._is_dense)),
        ):
            fields[field] = value
        for field, array in (
            (layout.EVENT_TEXT, self.text),
            (layout.EVENT_LONGS, self.longs),
            (layout.EVENT_INTS, self.ints),
            (layout.EVENT_CODES, self.codes),
            (layout.EVENT_VIEWS, self.views),
            (layout.EVENT_BITS, self.bits),
            (layout.FLOW_LONGS, self.flow_longs),
            (layout.FLOW_INTS, self.flow_ints),
            (layout.FLOW_PHASES, self.flow_phases),
            (layout.FLOW_BITS, self.flow_bits),
            (layout.MOMENT_TIMES, self._moment_times),
            (layout.MOMENT_INTS, self._moment_ints),
            (layout.MOMENT_ROLES, self._moment_roles),
            (layout.MOMENT_VIEWS, self._moment_views),
            (layout.MOMENT_BITS, self._moment_bits),
            (layout.MOMENT_TEXT, self._moment_text),
        ):
            fields[field] = array.ctypes.data

    def fill(self, block: PlainBlock) -> None:
        """Writes the rows of the next block."""
        fields, lane_id = self._fields, block.meaning.lane_id
        first_of_lane = np.full((len(lane_id), 2), layout.NO_LANE, np.int64)
        fields[layout.FIRST_OF_LANE] = first_of_lane.ctypes.data
        if self._is_dense:
            self.args_bits = _bits(block.survey.events)
            fields[layout.ARGS_BITS_OF_BLOCK] = self.args_bits.ctypes.data
            fields[layout.EVENT_BYTES_FILLED] = fields[layout.ARGS_FILLED] = 0
        table = block.meaning.table()
        latest_ns: int = fill(
            block.scanned.block.ctypes.data, table.ctypes.data, fields.ctypes.data
        )
        self.latest_ns = max(self.latest_ns, latest_ns)
        for lane in np.flatnonzero(first_of_lane[:, 0] != layout.NO_LANE).tolist():
            device, stream = first_of_lane[lane].tolist()
            self.gpu_lanes.setdefault(int(lane_id[lane]), (device, stream))

    def filled(self, field: int) -> int:
        """How much of something is filled (`plain_layout`)."""
        return int(self._fields[field])

    def moments(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the tables of instants and of counter samples."""
        if not self._moments:
            return _NO_MOMENTS, _NO_MOMENTS
        views = self._moment_views.view(np.uint32)
        moments = pl.DataFrame(
            [
                numbers_of("name_id", self._moment_ints[0].view(np.uint32)),
                numbers_of("lane_id", self._moment_ints[1].view(np.uint32)),
                numbers_of("time_ns", self._moment_times),
                strings_of("args", self._moment_text, views, self._moment_bits),
            ]
        )
        is_instant = self._moment_roles == INSTANT_ROLE
        if is_instant.all():
            return moments, _NO_MOMENTS
        if not is_instant.any():
            return _NO_MOMENTS, moments
        return moments.filter(is_instant), moments.filter(~is_instant)


def _bits(count: int) -> npt.NDArray[np.uint8]:
    """Returns validity bits, none set."""
    return np.zeros((count + 7) // 8, np.uint8)
