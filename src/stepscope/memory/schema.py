"""A snapshot: every table of it, with its columns, their types and units. The one place for names.

Times are int64 nanoseconds since 1970, sizes int64 bytes. A null means that the file did not say.
Addresses and streams are numbers as the recorder wrote them; a stream is a CUDA stream's handle, 0
the default stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import polars as pl

Types = dict[str, "pl.DataType | type[pl.DataType]"]


class Action(str, Enum):
    """What an event of the allocator's history records."""

    ALLOC = "alloc"
    """A block was handed to the program; `size_bytes` is what the program asked for."""
    FREE_REQUESTED = "free_requested"
    """The program gave a block back; other streams may still use it."""
    FREE_COMPLETED = "free_completed"
    """The block can be used again."""
    SEGMENT_ALLOC = "segment_alloc"
    """The allocator got a segment from the device (cudaMalloc)."""
    SEGMENT_FREE = "segment_free"
    """The allocator gave a segment back (cudaFree)."""
    SEGMENT_MAP = "segment_map"
    """Physical memory was mapped into an expandable segment."""
    SEGMENT_UNMAP = "segment_unmap"
    """Physical memory was unmapped from an expandable segment."""
    SNAPSHOT = "snapshot"
    """A snapshot was taken; `size_bytes` is what was active then, where the recorder says."""
    OOM = "oom"
    """An allocation failed; `size_bytes` is its rounded size, `device_free_bytes` what was free."""
    ANNOTATE = "annotate"
    """A note was attached to a live block; `metadata` is its text."""
    OTHER = "other"
    """An action that this version does not know."""


ACTION = pl.Enum([member.value for member in Action])


class BlockState(str, Enum):
    """What a block of a segment is in use for."""

    ALLOCATED = "active_allocated"
    PENDING_FREE = "active_pending_free"
    """Given back by the program, but another stream may still use it."""
    INACTIVE = "inactive"


BLOCK_STATE = pl.Enum([member.value for member in BlockState])

EVENTS: Types = {
    "event": pl.Int64,  # row number in file order, from 0; the identity of an event
    "device": pl.Int32,
    "action": ACTION,
    "address": pl.Int64,  # null where the action has none
    "size_bytes": pl.Int64,
    "stream": pl.Int64,
    "time_ns": pl.Int64,
    "device_free_bytes": pl.Int64,  # of an OOM: what the device had free
    "pool": pl.Int32,  # -> pools
    "stack": pl.UInt32,  # -> stacks; null: no stack was recorded
    "metadata": pl.UInt32,  # -> texts: what the program attached to its allocations
    "category": pl.UInt32,  # -> texts: a category that the recorder itself wrote
}
"""One row per event of the allocator's history, in the order of each device's history."""

SEGMENTS: Types = {
    "segment": pl.Int32,  # row number, from 0
    "device": pl.Int32,
    "address": pl.Int64,
    "size_bytes": pl.Int64,  # what the device gave: the segment's part of the reserved bytes
    "stream": pl.Int64,
    "is_large": pl.Boolean,  # of the pool for requests above 1 MiB
    "pool": pl.Int32,  # -> pools
    "is_expandable": pl.Boolean,
    "stack": pl.UInt32,  # -> stacks: who asked for the segment
}
"""One row per segment at the moment of the snapshot; of an expandable one per mapped range."""

BLOCKS: Types = {
    "block": pl.Int64,  # row number, from 0
    "segment": pl.Int32,
    "address": pl.Int64,
    "size_bytes": pl.Int64,  # as the allocator rounded it
    "requested_bytes": pl.Int64,  # what the program asked for; null where the file does not say
    "state": BLOCK_STATE,
    "stack": pl.UInt32,  # -> stacks: who asked for the block
}
"""One row per block of a segment, in order of addresses; they divide the segment."""

FRAMES: Types = {
    "frame": pl.UInt32,  # row number, from 0
    "name": pl.String,
    "filename": pl.String,
    "line": pl.Int64,
    "more": pl.String,  # further keys of the frame, as JSON: FX node, original code
}
"""One row per distinct frame."""

STACKS: Types = {
    "stack": pl.UInt32,  # row number, from 0
    "frames": pl.List(pl.UInt32),  # -> frames, the innermost first
}
"""One row per distinct stack."""

POOLS: Types = {
    "pool": pl.Int32,  # row number; 0 is the default pool
    "first": pl.Int64,  # the pair of numbers that torch knows the pool by
    "second": pl.Int64,
}
"""The default pool and the private ones (of CUDA graphs, of `torch.cuda.MemPool`)."""

TEXTS: Types = {
    "text": pl.UInt32,  # row number, from 0
    "value": pl.String,
}
"""Texts that the program attached."""

ANNOTATIONS: Types = {
    "device": pl.Int32,
    "name": pl.String,
    "is_start": pl.Boolean,
    "time_ns": pl.Int64,
}
"""Beginnings and ends of `record_function` ranges, in the order of the file."""

PROBLEMS: Types = {
    "problem": pl.String,  # a short stable word
    "count": pl.Int64,
    "message": pl.String,  # what is wrong and what was done about it
}
"""What was left out, repaired or looks wrong."""

TABLES: dict[str, Types] = {
    "events": EVENTS,
    "segments": SEGMENTS,
    "blocks": BLOCKS,
    "frames": FRAMES,
    "stacks": STACKS,
    "pools": POOLS,
    "texts": TEXTS,
    "annotations": ANNOTATIONS,
    "problems": PROBLEMS,
}
"""All tables by name."""


def filled(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with all columns of a table; null where there is none."""
    return rows.select(
        (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in TABLES[table].items()
    )


EXACT_SIZES = "stepscope_exact_sizes"
"""A setting of histories without a caching allocator: nothing is rounded."""

HOST_BYTES = "stepscope_host_bytes"
"""A setting: what the file says that the allocator of pinned host memory had reserved."""


@dataclass(frozen=True)
class Snapshot:
    """State and history of the caching allocator, with the tables of `TABLES`.

    Attributes:
        events: The history; read when it is collected.
        settings: What the file says of the allocator's settings, as it says it.
        store: The directory of Parquet files that the tables come from; None: they are in memory.
    """

    path: str
    events: pl.LazyFrame
    segments: pl.DataFrame
    blocks: pl.DataFrame
    frames: pl.DataFrame
    stacks: pl.DataFrame
    pools: pl.DataFrame
    texts: pl.DataFrame
    annotations: pl.DataFrame
    problems: pl.DataFrame
    settings: Mapping[str, Any] = field(default_factory=dict)
    store: Path | None = None
