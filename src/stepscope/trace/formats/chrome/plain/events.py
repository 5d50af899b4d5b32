"""Plain blocks as columns of Polars, for tables that stay in memory.

The result is the same as from `row_tables.py`, which handles rows of any kind.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.trace.arrays.arrow_columns import numbers_of, strings_of
from stepscope.trace.formats.chrome.names_and_lanes import categories_of
from stepscope.trace.formats.chrome.plain import layout
from stepscope.trace.formats.chrome.plain.target import OtherRows, PlainBlock, Target
from stepscope.trace.formats.chrome.row_tables import phase_words
from stepscope.trace.schema import INSTANTS
from stepscope.trace.tables import Chunk

_NO_MOMENTS = pl.DataFrame(schema=INSTANTS)


def frames_of(target: Target, blocks: list[PlainBlock]) -> Chunk:
    """Writes the columns of plain blocks, spread. Can be called in any thread.

    Args:
        blocks: The blocks, which are taken out of the list: the next scan can use their memory.
    """
    while blocks:
        target.fill(blocks.pop(0))
    args = strings_of("args", target.text, target.views.view(np.uint32), target.text_bits)
    columns = _event_columns(target)
    return Chunk(
        pl.DataFrame(columns).insert_column(2, categories_of(target.codes)),
        pl.DataFrame([columns[0], args]),
        pl.DataFrame(_moments(target.instants)) if target.instants.count else _NO_MOMENTS,
        pl.DataFrame(_moments(target.counters)) if target.counters.count else _NO_MOMENTS,
        _flows(target.flows),
    )


def _event_columns(target: Target) -> list[pl.Series]:
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


def _moments(rows: OtherRows) -> list[pl.Series]:
    """Returns the columns of `instants` and `counters`."""
    names, lanes = rows.ints.view(np.uint32)
    return [
        numbers_of("name_id", names),
        numbers_of("lane_id", lanes),
        numbers_of("time_ns", rows.times),
        strings_of("args", rows.text, rows.views.view(np.uint32), rows.text_bits),
    ]


def _flows(rows: OtherRows) -> pl.DataFrame:
    flow_id = numbers_of("flow_id", rows.ids.view(np.uint64), rows.id_bits)
    columns = [flow_id, *_moments(rows)]
    return pl.DataFrame([*columns[:-1], phase_words(rows.phases), columns[-1]])
