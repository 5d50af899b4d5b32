"""The allocator's state at any time: its segments, and the blocks that divide them.

What a snapshot holds is the state at its end. At any other event the blocks in use are known from
the replay, and what lies between them is free. How large a block is that was gone when the snapshot
was taken is known from the allocator's rules: a request is rounded, and what is left of the block
that serves it stays with it where the allocator would not split it off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.memory.allocator.rounding import SMALL_BYTES
from stepscope.memory.allocator.settings import settings_of
from stepscope.memory.replay.arrays import last_before, nullable
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import BLOCK_STATE, BlockState, Types

SEGMENTS_AT: Types = {
    "segment": pl.Int64,  # row number, from 0, in order of addresses
    "address": pl.Int64,
    "size_bytes": pl.Int64,
    "stream": pl.Int64,
    "pool": pl.Int32,
    "is_large": pl.Boolean,
    "is_expandable": pl.Boolean,
}
"""Segments at a time; of an expandable one each contiguous mapped part."""

BLOCKS_AT: Types = {
    "segment": pl.Int64,  # -> segments of the same state
    "address": pl.Int64,
    "size_bytes": pl.Int64,
    "requested_bytes": pl.Int64,  # null for what is free
    "state": BLOCK_STATE,
    "allocation": pl.Int64,  # -> allocations of the replay; null for what is free
}
"""Blocks at a time, in order of addresses; they divide the segments."""


@dataclass(frozen=True)
class State:
    """The state of one device's allocator after an event.

    Attributes:
        outside: Blocks in use that lie in no segment, because events are missing; they are left
            out.
    """

    device: int
    event: int
    segments: pl.DataFrame
    blocks: pl.DataFrame
    outside: int


def event_at(replay: Replay, device: int, time_ns: int) -> int:
    """The last event of a device at a time or before it; -1 where there is none."""
    mine = replay.curve.filter((pl.col("device") == device) & (pl.col("time_ns") <= time_ns))
    return -1 if mine.is_empty() else int(mine["event"][-1])


def state_at(replay: Replay, device: int, event: int | None = None) -> State:
    """The state of a device's allocator after an event.

    Event -1 is the beginning of the history, None its end.
    """
    end = np.iinfo(np.int64).max if event is None else event
    segments = _segments(replay, device, end)
    blocks = _at(replay.allocations, device, end, "end_event").sort("address")
    inside = last_before(
        blocks["device"], blocks["address"], segments["device"], segments["address"]
    )
    ends = (segments["address"] + segments["size_bytes"]).gather(nullable(inside, -1))
    is_inside = (blocks["address"] + blocks["size_bytes"] <= ends).fill_null(value=False)
    kept = blocks.with_columns(segment=pl.Series(inside)).filter(is_inside)
    kept = _without_overlaps(kept)
    return State(
        device=device,
        event=-1 if event is None and replay.curve.is_empty() else _number(replay, device, event),
        segments=segments.select(pl.col(name).cast(kind) for name, kind in SEGMENTS_AT.items()),
        blocks=_divided(replay, segments, kept, end),
        outside=len(blocks) - len(kept),
    )


def _number(replay: Replay, device: int, event: int | None) -> int:
    if event is not None:
        return event
    mine = replay.curve.filter(pl.col("device") == device)
    return -1 if mine.is_empty() else int(mine["event"][-1])


def _at(things: pl.DataFrame, device: int, event: int, end: str) -> pl.DataFrame:
    began = pl.col("start_event").is_null() | (pl.col("start_event") <= event)
    is_not_over = pl.col(end).is_null() | (pl.col(end) > event)
    return things.filter((pl.col("device") == device) & began & is_not_over)


def _segments(replay: Replay, device: int, event: int) -> pl.DataFrame:
    """Stretches at a time; parts of an expandable segment that touch are one."""
    stretches = _at(replay.reserved, device, event, "end_event").sort("address")
    same = ["is_expandable", "stream", "pool", "is_large"]
    # What a stretch that is gone by the end was for is known from its neighbour.
    touches = pl.col("is_expandable") & (
        pl.col("address") == (pl.col("address") + pl.col("size_bytes")).shift()
    )
    is_same = pl.all_horizontal(
        pl.col(name).eq_missing(pl.col(name).shift())
        | pl.col(name).is_null()
        | pl.col(name).shift().is_null()
        for name in same
    )
    run = (~(touches & is_same).fill_null(value=False)).cum_sum()
    return (
        stretches.with_columns(run=run)
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("device", "address", "is_expandable").first(),
            pl.col("size_bytes").sum(),
            pl.col("stream", "pool", "is_large").drop_nulls().first(),
        )
        .with_columns(segment=pl.int_range(pl.len(), dtype=pl.Int64))
    )


def _without_overlaps(blocks: pl.DataFrame) -> pl.DataFrame:
    """Leaves out blocks that begin inside the one before, which missing events bring about."""
    end = (pl.col("address") + pl.col("size_bytes")).cum_max().shift()
    return blocks.filter((pl.col("address") >= end).fill_null(value=True))


def _divided(
    replay: Replay, segments: pl.DataFrame, blocks: pl.DataFrame, event: int
) -> pl.DataFrame:
    """The blocks of all segments, those in use and what is free between them."""
    in_use = blocks.select(
        "segment",
        "address",
        "size_bytes",
        "requested_bytes",
        pl.when((pl.col("free_event") <= event) | pl.col("is_given_back_before"))
        .then(pl.lit(BlockState.PENDING_FREE.value))
        .otherwise(pl.lit(BlockState.ALLOCATED.value))
        .alias("state"),
        "allocation",
        pl.col("block").is_not_null().alias("is_exact"),
    )
    # A block without size at each end of a segment, so that every gap lies between two.
    boundaries = pl.concat(
        [
            segments.select("segment", "address", is_end=pl.lit(value=False)),
            segments.select(
                "segment",
                pl.col("address") + pl.col("size_bytes"),
                is_end=pl.lit(value=True),
            ),
        ]
    ).with_columns(size_bytes=pl.lit(0, dtype=pl.Int64))
    everything = (
        pl.concat([in_use.with_columns(is_end=pl.lit(value=False)), boundaries], how="diagonal")
        .sort("segment", "address", "is_end", "size_bytes", "allocation", nulls_last=False)
        .join(segments.select("segment", "is_large", "is_expandable"), on="segment", how="left")
    )
    gap = (
        pl.col("address").shift(-1).over("segment") - pl.col("address") - pl.col("size_bytes")
    ).fill_null(0)
    split = settings_of(replay.snapshot.settings).max_split_bytes
    is_small_gap = gap <= SMALL_BYTES
    if split is not None:
        is_small_gap |= pl.col("size_bytes") >= split
    stays_with_it = (
        pl.col("allocation").is_not_null()
        & ~pl.col("is_exact")
        & ~pl.col("is_expandable")
        & pl.col("is_large").fill_null(value=False)
        & is_small_gap
    )
    measured = everything.with_columns(gap=gap).with_columns(
        kept=pl.when(stays_with_it).then("gap").otherwise(0)
    )
    grown = measured.with_columns(
        size_bytes=pl.col("size_bytes") + pl.col("kept"), gap=pl.col("gap") - pl.col("kept")
    )
    free = grown.filter(pl.col("gap") > 0).select(
        "segment",
        pl.col("address") + pl.col("size_bytes"),
        pl.col("gap").alias("size_bytes"),
        pl.lit(BlockState.INACTIVE.value).alias("state"),
    )
    used = grown.filter(pl.col("allocation").is_not_null())
    return (
        pl.concat([used, free], how="diagonal")
        .sort("address")
        .select(pl.col(name).cast(kind) for name, kind in BLOCKS_AT.items())
    )
