"""Plain blocks as pages of Parquet, for the store: without tables of Polars in between.

The pages of some blocks are made by one thread while others scan the next blocks, from memory that
is used again for those.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome import plain_layout as layout
from stepscope.trace.formats.chrome.phases import FLOW_ROLE, ROLE_OF_PHASE
from stepscope.trace.formats.chrome.plain_target import PlainBlock, Target
from stepscope.trace.parquet.encoded import (
    EncodedColumn,
    EncodedRows,
    joined,
    numbers,
    texts,
    words,
)
from stepscope.trace.parquet.encodings import most_bytes
from stepscope.trace.schema import Category
from stepscope.trace.tables import Chunk

MOST_TEXT_BYTES = 1 << 30
"""Text of a block with more is not made a page."""

_CATEGORIES = [category.value.encode() for category in Category]
_FLOW_PHASES = np.flatnonzero(ROLE_OF_PHASE == FLOW_ROLE)
_FLOW_WORDS = [chr(code).encode() for code in _FLOW_PHASES]
_NUMBER_OF_FLOW_PHASE = np.zeros(256, np.uint8)
_NUMBER_OF_FLOW_PHASE[_FLOW_PHASES] = np.arange(len(_FLOW_PHASES))
_NOTHING = np.empty(0, np.uint8)


def room_for_pages(target: Target, buffers: Buffers) -> npt.NDArray[np.uint8]:
    """Returns memory for encoding the columns of a target."""
    rows = max(target.longs.shape[1], target.flow_longs.shape[1])
    room: npt.NDArray[np.uint8] = buffers.take(most_bytes(rows), np.uint8)
    return room


def pages_of(target: Target, blocks: list[PlainBlock], encoded: npt.NDArray[np.uint8]) -> Chunk:
    """Writes the columns of plain blocks, dense, and makes pages of them, in any thread.

    Args:
        target: Memory for the columns.
        blocks: The blocks.
        encoded: Memory for encoding (`room_for_pages`).
    """
    target.begin()
    args = []
    for block in blocks:
        target.fill(block)
        size, count = target.filled(layout.EVENT_BYTES_FILLED), block.survey.events
        nulls = count - target.filled(layout.ARGS_FILLED)
        args.append(texts(target.text[:size], target.args_bits, count, nulls))
    events = _events(target, encoded)
    return Chunk(
        EncodedRows(target.events, events),
        EncodedRows(target.events, {"event": events["event"], "args": joined(args)}),
        *target.moments(),
        _flows(target, encoded),
    )


def _events(target: Target, encoded: npt.NDArray[np.uint8]) -> dict[str, EncodedColumn]:
    count, longs, identifiers = target.events, target.longs, target.longs.view(np.uint64)
    ints, unsigned = target.ints, target.ints.view(np.uint32)

    def nullable(values: npt.NDArray[np.generic], filled: int, bits: int) -> EncodedColumn:
        return numbers(values[: target.filled(filled)], encoded, target.bits[bits], count)

    def whole(values: npt.NDArray[np.generic]) -> EncodedColumn:
        return numbers(values[:count], encoded)

    return {
        "event": whole(longs[layout.NUMBER]),
        "name_id": whole(unsigned[layout.NAME_IDS]),
        "category": words(target.codes[:count], _CATEGORIES),
        "lane_id": whole(unsigned[layout.LANE_IDS]),
        "start_ns": whole(longs[layout.START]),
        "dur_ns": whole(longs[layout.DUR]),
        "correlation": nullable(
            identifiers[layout.CORRELATION_IDS],
            layout.CORRELATIONS_FILLED,
            layout.CORRELATION_BITS,
        ),
        "external_id": nullable(
            identifiers[layout.EXTERNAL_IDS], layout.EXTERNALS_FILLED, layout.EXTERNAL_BITS
        ),
        "device": nullable(ints[layout.DEVICES], layout.DEVICES_FILLED, layout.DEVICE_BITS),
        "stream": nullable(longs[layout.STREAMS], layout.STREAMS_FILLED, layout.STREAM_BITS),
        "bytes": nullable(longs[layout.SIZES], layout.SIZES_FILLED, layout.SIZE_BITS),
    }


def _flows(target: Target, encoded: npt.NDArray[np.uint8]) -> EncodedRows:
    count, longs, ints = target.flows, target.flow_longs, target.flow_ints.view(np.uint32)
    identifiers = longs[0].view(np.uint64)[: target.filled(layout.FLOW_IDS_FILLED)]
    return EncodedRows(
        count,
        {
            "flow_id": numbers(identifiers, encoded, target.flow_bits, count),
            "name_id": numbers(ints[0][:count], encoded),
            "lane_id": numbers(ints[1][:count], encoded),
            "time_ns": numbers(longs[1][:count], encoded),
            "phase": words(_NUMBER_OF_FLOW_PHASE[target.flow_phases], _FLOW_WORDS),
            "args": texts(_NOTHING, None, count, count),
        },
    )
