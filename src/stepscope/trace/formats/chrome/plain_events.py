"""Plain blocks as columns of Polars, for tables that stay in memory.

The result is the same as from `row_tables.py`, which handles rows of any kind.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.trace.arrays.arrow_columns import numbers_of, strings_of
from stepscope.trace.formats.chrome import plain_layout as layout
from stepscope.trace.formats.chrome.names_and_lanes import categories_of
from stepscope.trace.formats.chrome.plain_target import PlainBlock, Target
from stepscope.trace.formats.chrome.row_tables import phase_words
from stepscope.trace.tables import Chunk

_NO_TEXT = pl.Series("args", [None], pl.String)


def frames_of(target: Target, blocks: list[PlainBlock]) -> Chunk:
    """Writes the columns of plain blocks, spread. Can be called in any thread."""
    target.begin()
    for block in blocks:
        target.fill(block)
    count, bits = target.events, target.bits
    args = strings_of("args", target.text, target.views.view(np.uint32), bits[layout.ARGS_BITS])
    columns = _event_columns(target)
    category = categories_of(target.codes[:count])
    return Chunk(
        pl.DataFrame(columns).insert_column(2, category),
        pl.DataFrame([columns[0], args]),
        *target.moments(),
        _flows(target),
    )


def _event_columns(target: Target) -> list[pl.Series]:
    """Returns the columns of `events`, without the category."""
    longs, ints, bits = target.longs, target.ints, target.bits
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


def _flows(target: Target) -> pl.DataFrame:
    longs, ints = target.flow_longs, target.flow_ints.view(np.uint32)
    return pl.DataFrame(
        [
            numbers_of("flow_id", longs[0].view(np.uint64), target.flow_bits),
            numbers_of("name_id", ints[0]),
            numbers_of("lane_id", ints[1]),
            numbers_of("time_ns", longs[1]),
            phase_words(target.flow_phases),
            _NO_TEXT.new_from_index(0, target.flows),
        ]
    )
