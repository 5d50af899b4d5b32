"""The binary format in which tiles go to the page.

Layout, all numbers little-endian
    4 bytes      "SSB1"
    4 bytes      length of the header, a multiple of 8, uint32
    header       JSON, padded with blanks: {"meta": …, "columns": [{"name", "type", "length"}, …]}
    columns      in the order of the header, each padded with zeros to a multiple of 8 bytes

Types are those of JavaScript's typed arrays: uint8, uint16, uint32, float32, float64.

A slice tile
    `meta`: start_ns (within the trace), level, buckets, rows.
    `offset` (uint32): items of row i are those from offset[i] up to offset[i + 1].
    `start`, `width` (float32): nanoseconds, the start from that of the tile on. A float32 holds 24
    bits: what is rounded off is less than a thousandth of a bucket for tiles of up to 16,384 of
    them, and nothing at all where the tile is shorter than 2**24 ns.
    `share` (float32): covered part of the bucket; 1 for wide slices.
    `count`, `event`, `name` (uint32), `colour`, `wide` (uint8).

A counter tile
    `meta`: start_ns, level, buckets, before (null: no value yet).
    `bucket` (uint32); `least`, `greatest`, `last` (float64).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepscope.run.side_json import utf8_json

if TYPE_CHECKING:
    from stepscope.viewer.counters import CounterTile
    from stepscope.viewer.tiles import SliceTile

MAGIC = b"SSB1"
_TYPES = {"uint8", "uint16", "uint32", "float32", "float64"}


def encode(meta: Mapping[str, Any], columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Columns as bytes.

    Args:
        meta: What is said of them as a whole; anything that JSON holds.
        columns: Arrays of the types above.
    """
    for name, column in columns.items():
        if column.dtype.name not in _TYPES:
            raise TypeError(f"'{name}' is of type {column.dtype}")
    described = [
        {"name": name, "type": column.dtype.name, "length": len(column)}
        for name, column in columns.items()
    ]
    header = utf8_json({"meta": dict(meta), "columns": described})
    header += b" " * (-len(header) % 8)
    parts = [MAGIC, len(header).to_bytes(4, "little"), header]
    for column in columns.values():
        data = column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()
        parts += [data, bytes(-len(data) % 8)]
    return b"".join(parts)


def encode_slices(tile: SliceTile) -> bytes:
    """A slice tile as bytes."""
    lasting = tile.item_end_ns - tile.item_start_ns
    share = np.where(tile.is_wide, 1.0, tile.covered_ns / tile.step_ns)
    meta = {
        "start_ns": tile.start_ns,
        "level": tile.level,
        "buckets": tile.buckets,
        "rows": tile.rows.tolist(),
    }
    return encode(
        meta,
        {
            "offset": tile.offsets.astype(np.uint32),
            "start": (tile.item_start_ns - tile.start_ns).astype(np.float32),
            "width": lasting.astype(np.float32),
            "share": share.astype(np.float32),
            "count": tile.count,
            "event": tile.event,
            "name": tile.name,
            "colour": tile.colour,
            "wide": tile.is_wide.astype(np.uint8),
        },
    )


def encode_counter(tile: CounterTile) -> bytes:
    """A counter tile as bytes: its arrays are the columns."""
    columns = {name: one for name, one in vars(tile).items() if isinstance(one, np.ndarray)}
    return encode({name: one for name, one in vars(tile).items() if name not in columns}, columns)
