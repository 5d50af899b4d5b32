"""Turns plain blocks into columns: allocates their memory, and wraps them for Polars.

The result is the same as from `row_tables.py`, which handles rows of any kind.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.trace.arrays.arrow_columns import numbers_of, strings_of
from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome import plain_layout as layout
from stepscope.trace.formats.chrome.plain_fill import fill
from stepscope.trace.formats.chrome.plain_survey import Meaning, Survey
from stepscope.trace.formats.chrome.scan_bytes import PADDING
from stepscope.trace.formats.chrome.scanned import Scanned


@dataclass(frozen=True)
class PlainEvents:
    """The rows that a block adds to the tables.

    Attributes:
        events: The columns of `events`, without the category.
        code: The category code of each event.
        args: The arguments of each event.
        flows: The columns of `flows`, without phase and arguments; flows here have no arguments.
        flow_phases: The phase of each flow, as a character code.
        moments: The rows of instants and counters in the block, in order.
        moment_args: The arguments of each instant and counter.
        latest_ns: The latest end of an event.
        gpu_lanes: GPU lanes, with device and stream (-1: none) of their first event.
    """

    events: list[pl.Series]
    code: npt.NDArray[np.uint8]
    args: pl.Series
    flows: list[pl.Series]
    flow_phases: npt.NDArray[np.uint8]
    moments: npt.NDArray[np.int64]
    moment_args: pl.Series
    latest_ns: int
    gpu_lanes: dict[int, tuple[int, int]]


class Filling:
    """The task of writing the columns of a plain block.

    Created in file order; `run` can be called in any thread.

    Args:
        scanned: The block.
        meaning: The meaning of all its numbers.
        survey: What is in the block.
        first_event: Number of its first event.
        buffers: Pool for the arrays of short-lived tables. None if the tables stay in memory:
            arguments are then copied, so that the text of the block can be freed.
    """

    def __init__(
        self,
        scanned: Scanned,
        meaning: Meaning,
        survey: Survey,
        first_event: int,
        buffers: Buffers | None,
    ) -> None:
        self.scanned = scanned
        self.meaning = meaning
        self._survey = survey
        self._first_event = first_event
        self._copies_text = buffers is None
        take = np.empty if buffers is None else buffers.take
        # Powers of two, so that buffers can be reused.
        room = survey.events if buffers is None else 1 << survey.events.bit_length()
        flow_room = survey.flows if buffers is None else 1 << survey.flows.bit_length()
        self._longs = take((layout.EVENT_LONG_COLUMNS, room), np.int64)
        self._ints = take((layout.EVENT_INT_COLUMNS, room), np.int32)
        self._codes, self._views = take((room,), np.uint8), take((room, 2), np.int64)
        self._flow_longs = take((2, flow_room), np.int64)
        self._flow_ints = take((2, flow_room), np.int32)

    def run(self) -> PlainEvents:
        """Writes the columns."""
        scanned, meaning, survey = self.scanned, self.meaning, self._survey
        count, moments, flows = survey.events, survey.moments, survey.flows
        longs, ints, codes, views = self._longs, self._ints, self._codes, self._views
        flow_longs, flow_ints = self._flow_longs, self._flow_ints
        text = scanned.data
        if self._copies_text:
            text = np.empty(survey.event_bytes + PADDING, np.uint8)
        flow_phases, flow_bits = np.empty(flows, np.uint8), np.zeros(flows, np.uint8)
        bits = np.zeros((layout.EVENT_BIT_COLUMNS, (count + 7) // 8), np.uint8)
        moment_rows, moment_views = np.empty(moments, np.int64), np.empty((moments, 2), np.int64)
        moment_bits = np.zeros((moments + 7) // 8, np.uint8)
        moment_text = np.empty(survey.moment_bytes + PADDING, np.uint8)
        first_of_lane = np.full(len(meaning.lane_id), -1, np.int64)
        target = np.empty(layout.TARGET_FIELDS, np.int64)
        for field, value in (
            (layout.EVENT_ROOM, codes.size),
            (layout.FLOW_ROOM, flow_ints.shape[1]),
            (layout.BITS_EACH, bits.shape[1]),
            (layout.FIRST_EVENT, self._first_event),
            (layout.EVENT_TEXT, text.ctypes.data if self._copies_text else 0),
        ):
            target[field] = value
        for field, array in (
            (layout.EVENT_LONGS, longs),
            (layout.EVENT_INTS, ints),
            (layout.EVENT_CODES, codes),
            (layout.EVENT_VIEWS, views),
            (layout.EVENT_BITS, bits),
            (layout.FIRST_OF_LANE, first_of_lane),
            (layout.FLOW_LONGS, flow_longs),
            (layout.FLOW_INTS, flow_ints),
            (layout.FLOW_PHASES, flow_phases),
            (layout.FLOW_BITS, flow_bits),
            (layout.MOMENT_ROWS, moment_rows),
            (layout.MOMENT_VIEWS, moment_views),
            (layout.MOMENT_BITS, moment_bits),
            (layout.MOMENT_TEXT, moment_text),
        ):
            target[field] = array.ctypes.data
        table = meaning.table()
        latest_ns = fill(scanned.block.ctypes.data, table.ctypes.data, target.ctypes.data)
        devices, streams = ints[layout.DEVICES], longs[layout.STREAMS]
        gpu_lanes = {
            int(meaning.lane_id[lane]): (int(devices[at]), int(streams[at]))
            for lane, at in enumerate(first_of_lane.tolist())
            if at >= 0
        }
        return PlainEvents(
            events=_event_columns(longs[:, :count], ints[:, :count], bits),
            code=codes[:count],
            args=strings_of("args", text, views[:count].view(np.uint32), bits[layout.ARGS_BITS]),
            flows=[
                numbers_of("flow_id", flow_longs[0, :flows].view(np.uint64), flow_bits),
                numbers_of("name_id", flow_ints[0, :flows].view(np.uint32)),
                numbers_of("lane_id", flow_ints[1, :flows].view(np.uint32)),
                numbers_of("time_ns", flow_longs[1, :flows]),
            ],
            flow_phases=flow_phases,
            moments=moment_rows,
            moment_args=strings_of("args", moment_text, moment_views.view(np.uint32), moment_bits),
            latest_ns=latest_ns,
            gpu_lanes=gpu_lanes,
        )


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
