"""Tables of a replayed history: their columns, types and units."""

from __future__ import annotations

import polars as pl

from stepscope.memory.schema import Types

ALLOCATIONS: Types = {
    "allocation": pl.Int64,  # row number, from 0
    "device": pl.Int32,
    "address": pl.Int64,
    "requested_bytes": pl.Int64,  # what the program asked for
    "size_bytes": pl.Int64,  # of the block: as the snapshot says, else as the allocator rounds
    "stream": pl.Int64,
    "pool": pl.Int32,  # -> pools; null: not known
    "stack": pl.UInt32,  # -> stacks: who asked for it
    "is_stack_of_free": pl.Boolean,  # the stack is that of the free: the request was not recorded
    "start_event": pl.Int64,  # null: it was there before the recording
    "free_event": pl.Int64,  # the program gave it back; null: not in the recording
    "end_event": pl.Int64,  # it could be used again; null: it was active at the snapshot
    "is_given_back_before": pl.Boolean,  # see below
    "start_ns": pl.Int64,
    "free_ns": pl.Int64,
    "end_ns": pl.Int64,
    "block": pl.Int64,  # -> blocks, where it was active at the snapshot
    "metadata": pl.UInt32,  # -> texts: what the program attached to the request
    "category": pl.UInt32,  # -> texts: a category that the recorder itself wrote
}
"""One row per block that was active for a time.

A block that was given back before the recording only waited for another stream in it: the program
did not hold it any more.
"""

RESERVED: Types = {
    "stretch": pl.Int64,  # row number, from 0
    "device": pl.Int32,
    "address": pl.Int64,
    "size_bytes": pl.Int64,
    "stream": pl.Int64,
    "pool": pl.Int32,  # -> pools; null: not known
    "is_large": pl.Boolean,  # its size class; null: not known
    "is_expandable": pl.Boolean,
    "stack": pl.UInt32,  # -> stacks: who asked for it
    "start_event": pl.Int64,  # null: it was there before the recording
    "end_event": pl.Int64,  # null: it was there at the snapshot
}
"""One row per stretch of memory that the allocator held of the device for a time: a segment, or a
part of an expandable one that was mapped and unmapped as one."""

CURVE: Types = {
    "event": pl.Int64,
    "device": pl.Int32,
    "time_ns": pl.Int64,
    "requested_bytes": pl.Int64,  # asked for, of the blocks that the program holds
    "allocated_bytes": pl.Int64,  # the sizes of these blocks, rounded
    "active_bytes": pl.Int64,  # and of those given back that another stream still uses
    "reserved_bytes": pl.Int64,  # of the device
}
"""One row per event: what held after it."""

CONTRADICTIONS: Types = {
    "contradiction": pl.String,  # a short stable word
    "count": pl.Int64,
    "device": pl.Int32,
    "event": pl.Int64,  # the first; null: it shows at the snapshot only
    "address": pl.Int64,  # of the first
    "message": pl.String,
}
"""What in the history cannot be, by kind and device."""

NOTES: Types = {"annotation": pl.UInt32, "allocation": pl.Int64, "event": pl.Int64}
"""Texts that were attached to blocks while they lived: -> texts, -> allocations, -> events."""
