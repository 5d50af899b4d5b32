"""Turns plain blocks into columns: allocates their memory, and wraps them for Polars.

The result is the same as from `row_tables.py`, which handles rows of any kind.
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
from stepscope.trace.formats.chrome.plain_fill import fill
from stepscope.trace.formats.chrome.plain_meaning import Meaning
from stepscope.trace.formats.chrome.rows import INT64_MAX
from stepscope.trace.formats.chrome.scan_bytes import PADDING
from stepscope.trace.formats.chrome.scanned import Scanned, Survey

_TEXT_ROOM = (
    8 << 20
)  # sizes of pooled buffers are multiples of this; what is not used costs nothing


@dataclass(frozen=True)
class PlainBlock:
    """A plain block with what its numbers mean."""

    scanned: Scanned
    meaning: Meaning
    survey: Survey


@dataclass(frozen=True)
class PlainEvents:
    """The rows that some blocks add to the tables.

    Attributes:
        events: The columns of `events`, without the category.
        code: The category code of each event.
        args: The arguments of each event.
        flows: The columns of `flows`, without phase and arguments; flows here have no arguments.
        flow_phases: The phase of each flow, as a character code.
        moments: The columns of `instants` and `counters`.
        moment_roles: Whether each moment is an instant or a counter (`phases`).
        latest_ns: The latest end of an event.
        gpu_lanes: GPU lanes, with device and stream (-1: none) of their first event.
    """

    events: list[pl.Series]
    code: npt.NDArray[np.uint8]
    args: pl.Series
    flows: list[pl.Series]
    flow_phases: npt.NDArray[np.uint8]
    moments: list[pl.Series]
    moment_roles: npt.NDArray[np.uint8]
    latest_ns: int
    gpu_lanes: dict[int, tuple[int, int]]


class Filling:
    """The task of writing the columns of consecutive plain blocks.

    Created in file order; `run` can be called in any thread.

    Args:
        blocks: The blocks.
        first_event: Number of their first event.
        buffers: Pool for the arrays of short-lived tables. None if the tables stay in memory.
    """

    def __init__(
        self, blocks: Sequence[PlainBlock], first_event: int, buffers: Buffers | None
    ) -> None:
        self._blocks = blocks
        self._first_event = first_event
        self._events = sum(block.survey.events for block in blocks)
        self._flows = sum(block.survey.flows for block in blocks)
        take = np.empty if buffers is None else buffers.take
        # Powers of two, so that buffers can be reused.
        room = self._events if buffers is None else 1 << self._events.bit_length()
        flow_room = self._flows if buffers is None else 1 << self._flows.bit_length()
        self._longs = take((layout.EVENT_LONG_COLUMNS, room), np.int64)
        self._ints = take((layout.EVENT_INT_COLUMNS, room), np.int32)
        self._codes, self._views = take((room,), np.uint8), take((room, 2), np.int64)
        # Arguments are copied, so as not to keep all text of the blocks for them.
        text = sum(block.survey.event_bytes for block in blocks) + PADDING
        self._text = take(
            text if buffers is None else -(-text // _TEXT_ROOM) * _TEXT_ROOM, np.uint8
        )
        self._flow_longs = take((2, flow_room), np.int64)
        self._flow_ints = take((2, flow_room), np.int32)

    def run(self) -> PlainEvents:
        """Writes the columns."""
        surveys = [block.survey for block in self._blocks]
        count, flows = self._events, self._flows
        moments = sum(survey.moments for survey in surveys)
        longs, ints, codes, views = self._longs, self._ints, self._codes, self._views
        flow_longs, flow_ints = self._flow_longs, self._flow_ints
        flow_phases, flow_bits = np.empty(flows, np.uint8), _bits(flows)
        bits = np.zeros((layout.EVENT_BIT_COLUMNS, (count + 7) // 8), np.uint8)
        moment_times, moment_ints = np.empty(moments, np.int64), np.empty((2, moments), np.int32)
        moment_roles, moment_bits = np.empty(moments, np.uint8), _bits(moments)
        moment_views = np.empty((moments, 2), np.int64)
        moment_text = np.empty(sum(each.moment_bytes for each in surveys) + PADDING, np.uint8)
        target = np.zeros(layout.TARGET_FIELDS, np.int64)
        for field, value in (
            (layout.EVENT_ROOM, codes.size),
            (layout.FLOW_ROOM, flow_ints.shape[1]),
            (layout.MOMENT_ROOM, moments),
            (layout.BITS_EACH, bits.shape[1]),
            (layout.FIRST_EVENT, self._first_event),
        ):
            target[field] = value
        for field, array in (
            (layout.EVENT_TEXT, self._text),
            (layout.EVENT_LONGS, longs),
            (layout.EVENT_INTS, ints),
            (layout.EVENT_CODES, codes),
            (layout.EVENT_VIEWS, views),
            (layout.EVENT_BITS, bits),
            (layout.FLOW_LONGS, flow_longs),
            (layout.FLOW_INTS, flow_ints),
            (layout.FLOW_PHASES, flow_phases),
            (layout.FLOW_BITS, flow_bits),
            (layout.MOMENT_TIMES, moment_times),
            (layout.MOMENT_INTS, moment_ints),
            (layout.MOMENT_ROLES, moment_roles),
            (layout.MOMENT_VIEWS, moment_views),
            (layout.MOMENT_BITS, moment_bits),
            (layout.MOMENT_TEXT, moment_text),
        ):
            target[field] = array.ctypes.data
        devices, streams = ints[layout.DEVICES], longs[layout.STREAMS]
        latest_ns = -INT64_MAX
        gpu_lanes: dict[int, tuple[int, int]] = {}
        for block in self._blocks:
            lane_id = block.meaning.lane_id
            first_of_lane = np.full(len(lane_id), -1, np.int64)
            target[layout.FIRST_OF_LANE] = first_of_lane.ctypes.data
            table = block.meaning.table()
            latest_ns = max(
                latest_ns,
                fill(block.scanned.block.ctypes.data, table.ctypes.data, target.ctypes.data),
            )
            for lane in np.flatnonzero(first_of_lane >= 0).tolist():
                at = first_of_lane[lane]
                gpu_lanes.setdefault(int(lane_id[lane]), (int(devices[at]), int(streams[at])))
        return PlainEvents(
            events=_event_columns(longs[:, :count], ints[:, :count], bits),
            code=codes[:count],
            args=strings_of(
                "args", self._text, views[:count].view(np.uint32), bits[layout.ARGS_BITS]
            ),
            flows=[
                numbers_of("flow_id", flow_longs[0, :flows].view(np.uint64), flow_bits),
                numbers_of("name_id", flow_ints[0, :flows].view(np.uint32)),
                numbers_of("lane_id", flow_ints[1, :flows].view(np.uint32)),
                numbers_of("time_ns", flow_longs[1, :flows]),
            ],
            flow_phases=flow_phases,
            moments=[
                numbers_of("name_id", moment_ints[0].view(np.uint32)),
                numbers_of("lane_id", moment_ints[1].view(np.uint32)),
                numbers_of("time_ns", moment_times),
                strings_of("args", moment_text, moment_views.view(np.uint32), moment_bits),
            ],
            moment_roles=moment_roles,
            latest_ns=latest_ns,
            gpu_lanes=gpu_lanes,
        )


def _bits(count: int) -> npt.NDArray[np.uint8]:
    """Returns validity bits, none set."""
    return np.zeros((count + 7) // 8, np.uint8)


def _event_columns(
    longs: npt.NDArray[np.int64], ints: npt.NDArray[np.int32], bits: npt.NDArray[np.uint8]
) -> list[pl.Series]:
    """Returns the columns of `events`, without the category, from the arrays that `fill` wrote."""
    unsigned, identifiers = ints.view(np.uint32), longs.view(np.uint64)
    correlation = identifiers[layout.CORRELATION_IDS]
    external_id = identifiers[layout.EXTERNAL_IDS]
    return [
        numbers_of("event", longs[layout.NUMBER]),
        numbers_of("name_id", unsigned[layout.NAME_IDS]),
        numbers_of("lane_id", unsigned[layout.LANE_IDS]),
        numbers_of("start_ns", longs[layout.START]),
        numbers_of("dur_ns", longs[layout.DUR]),
        numbers_of("correlation", correlation, bits[layout.CORRELATION_BITS]),
        numbers_of("external_id", external_id, bits[layout.EXTERNAL_BITS]),
        numbers_of("device", ints[layout.DEVICES], bits[layout.DEVICE_BITS]),
        numbers_of("stream", longs[layout.STREAMS], bits[layout.STREAM_BITS]),
        numbers_of("bytes", longs[layout.SIZES], bits[layout.SIZE_BITS]),
    ]
