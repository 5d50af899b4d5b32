"""Plain blocks as pages of Parquet, for the store: without tables of Polars in between.

A thread makes the pages of some blocks while others scan the next ones. The memory for that is used
again and again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepscope.trace.arrays.buffers import Buffers
from stepscope.trace.formats.chrome.phases import EVENT_ROLE, FLOW_ROLE, ROLE_OF_PHASE
from stepscope.trace.formats.chrome.plain import layout
from stepscope.trace.formats.chrome.plain.target import OtherRows, PlainBlock, Target
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

MOST_BLOCK_BYTES = 1 << 30
"""The arguments of larger blocks are not made a page, whose size has 31 bits."""

_CATEGORIES = [category.value.encode() for category in Category]
_FLOW_PHASES = np.flatnonzero(ROLE_OF_PHASE == FLOW_ROLE)
_FLOW_WORDS = [chr(code).encode() for code in _FLOW_PHASES]
_NUMBER_OF_FLOW_PHASE = np.zeros(256, np.uint8)
_NUMBER_OF_FLOW_PHASE[_FLOW_PHASES] = np.arange(len(_FLOW_PHASES))
_NONE = EncodedRows(0, {})


def room_for_pages(target: Target, buffers: Buffers) -> npt.NDArray[np.uint8]:
    """Returns memory for encoding the columns of a target."""
    others = (target.instants, target.counters, target.flows)
    rows = max(target.codes.size, *(other.times.size for other in others))
    room: npt.NDArray[np.uint8] = buffers.take(most_bytes(rows), np.uint8)
    return room


def pages_of(target: Target, blocks: list[PlainBlock], encoded: npt.NDArray[np.uint8]) -> Chunk:
    """Writes the columns of plain blocks, dense, and makes pages of them, in any thread.

    Args:
        blocks: The blocks, which are taken out of the list.
        encoded: Memory for encoding (`room_for_pages`).
    """
    others = (target.instants, target.counters, target.flows)
    args: list[EncodedColumn] = []
    args_of_others: dict[int, list[EncodedColumn]] = {other.role: [] for other in others}
    while blocks:
        block = blocks.pop(0)
        target.fill(block)
        rows = block.survey.rows
        del block  # so that the next scan can use its memory
        if rows[EVENT_ROLE]:
            size, count = target.filled(layout.EVENT_BYTES_FILLED), rows[EVENT_ROLE]
            nulls = count - target.filled(layout.ARGS_FILLED)
            args.append(texts(target.text[:size], target.text_bits, count, nulls))
        for other in others:
            if rows[other.role]:
                size, count = target.filled(layout.TEXT_BYTES_FILLED, other), rows[other.role]
                nulls = count - target.filled(layout.TEXTS_FILLED, other)
                page = texts(other.text[:size], other.text_bits, count, nulls)
                args_of_others[other.role].append(page)
    events = arguments = _NONE
    if target.events:
        events = EncodedRows(target.events, _events(target, encoded))
        number = events.columns["event"]
        arguments = EncodedRows(target.events, {"event": number, "args": joined(args)})
    instants, counters, flows = (
        _others(target, other, args_of_others[other.role], encoded) for other in others
    )
    return Chunk(events, arguments, instants, counters, flows)


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


def _others(
    target: Target,
    rows: OtherRows,
    args: list[EncodedColumn],
    encoded: npt.NDArray[np.uint8],
) -> EncodedRows:
    count = rows.count
    if not count:
        return _NONE
    names, lanes = rows.ints.view(np.uint32)
    columns = {
        "name_id": numbers(names[:count], encoded),
        "lane_id": numbers(lanes[:count], encoded),
        "time_ns": numbers(rows.times[:count], encoded),
        "args": joined(args),
    }
    if rows.role == FLOW_ROLE:
        identifiers = rows.ids.view(np.uint64)[: target.filled(layout.IDS_FILLED, rows)]
        columns["flow_id"] = numbers(identifiers, encoded, rows.id_bits, count)
        columns["phase"] = words(_NUMBER_OF_FLOW_PHASE[rows.phases[:count]], _FLOW_WORDS)
    return EncodedRows(count, columns)
