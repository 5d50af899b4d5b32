"""The allocator's segments at one moment, and what lies in them, in a picture of bounded size.

A segment is divided into cells. A block as wide as a cell or wider has one of its own; narrower
neighbours share one, which says how much of it is in use. So free memory between blocks that pin a
segment can be seen, however many blocks there are.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from stepscope.memory.replay.arrays import gathered, whole
from stepscope.memory.replay.state import State, state_at
from stepscope.memory.schema import EXACT_SIZES, BlockState
from stepscope.memory.view import MemoryView

MOST_SEGMENTS = 60
CELLS = 160


def segments_at(view: MemoryView, device: int, event: int) -> dict[str, Any] | None:
    """The largest segments with their cells; None where there is no caching allocator.

    Args:
        view: The memory.
        device: The device.
        event: The last event that has happened.

    Returns:
        `segments`: address, size_bytes, allocated_bytes (in blocks that the program holds), stream,
        pool, is_large, is_expandable and cells. A cell is its start and its size in bytes, the
        allocated part of it in bytes, the category of most of that (null: free) and the
        allocation, if it is one. `others` and `others_bytes`: the segments that are left out.
    """
    if view.snapshot.settings.get(EXACT_SIZES):
        return None
    state = state_at(view.replay, device, event)
    order = state.segments.sort("size_bytes", "address", descending=[True, False])
    shown, rest = order.head(MOST_SEGMENTS), order.slice(MOST_SEGMENTS)
    cells = _cells(view, state, shown)
    return {
        "segments": [
            {
                "address": f"{row['address']:#x}",
                **{
                    name: row[name]
                    for name in ("size_bytes", "stream", "pool", "is_large", "is_expandable")
                },
                "allocated_bytes": sum(cell[2] for cell in cells.get(row["segment"], [])),
                "cells": cells.get(row["segment"], []),
            }
            for row in shown.iter_rows(named=True)
        ],
        "others": len(rest),
        "others_bytes": int(rest["size_bytes"].sum()),
    }


def _cells(view: MemoryView, state: State, shown: pl.DataFrame) -> dict[int, list[list[Any]]]:
    rows = whole(state.blocks["allocation"].fill_null(-1))
    is_held = pl.col("state") == BlockState.ALLOCATED.value
    blocks = (
        state.blocks.with_columns(
            category=gathered(view.allocations["category"].cast(pl.String), rows),
        )
        .join(
            shown.select("segment", begin="address", room="size_bytes"), on="segment", how="inner"
        )
        .with_columns(
            start=pl.col("address") - pl.col("begin"),
            held_bytes=pl.when(is_held).then("size_bytes").otherwise(0),
        )
        .sort("segment", "start")
    )
    is_wide = pl.col("size_bytes") * CELLS >= pl.col("room")
    place = pl.col("start") * CELLS // pl.col("room")
    begins = (
        (pl.col("segment") != pl.col("segment").shift())
        | is_wide
        | is_wide.shift()
        | (place != place.shift())
    ).fill_null(value=True)
    merged = (
        blocks.with_columns(cell=begins.cum_sum())
        .group_by("segment", "cell", maintain_order=True)
        .agg(
            pl.col("start").first(),
            pl.col("size_bytes").sum(),
            pl.col("held_bytes").sum(),
            pl.col("category").sort_by("held_bytes").last(),
            pl.when(pl.len() == 1).then(pl.col("allocation").first()).alias("allocation"),
        )
        .with_columns(category=pl.when(pl.col("held_bytes") > 0).then("category"))
    )
    found: dict[int, list[list[Any]]] = {}
    for segment, _, *cell in merged.iter_rows():
        found.setdefault(segment, []).append(cell)
    return found
