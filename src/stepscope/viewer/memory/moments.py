"""What memory held at one moment, its segments, and one allocation in full, as the page shows them.

A segment is divided into cells. A block as wide as a cell or wider has one of its own; narrower
neighbours share one, which says how much of it is in use. So free memory between blocks that pin a
segment can be seen, however many blocks there are.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.program.lines import line_text
from stepscope.memory.questions.composition import composition
from stepscope.memory.replay.state import State, state_at
from stepscope.memory.schema import EXACT_SIZES, BlockState
from stepscope.memory.view import MemoryView, Moment
from stepscope.viewer.tables import for_page

_TABLES = {
    "lines": "By line",
    "modules": "By module",
    "allocations": "Allocations, the largest first",
    "sizes": "By size",
}
MOST_SEGMENTS = 60
CELLS = 160
_MOST_ROWS = 200
_MOST_FRAMES = 200


def state_of(view: MemoryView, moment: Moment) -> dict[str, Any]:
    """What was held at a moment: as `stepscope memory PATH held --at …` says, and the segments."""
    found = composition(view, moment)
    return {
        "device": found.device,
        "moment": found.moment,
        "event": found.event,
        "time_ns": None if found.time_ns is None else found.time_ns - view.origin_ns,
        "allocated_bytes": found.allocated_bytes,
        "requested_bytes": found.requested_bytes,
        "reserved_bytes": found.reserved_bytes,
        "categories": found.categories.to_dicts(),
        "tables": [
            {
                "name": name,
                "title": title,
                **for_page(getattr(found, name), view.origin_ns, _MOST_ROWS),
            }
            for name, title in _TABLES.items()
        ],
        "segments": segments_at(view, moment.device, moment.event),
        "notes": list(found.notes),
    }


def allocation_in_full(view: MemoryView, number: int) -> dict[str, Any]:
    """One allocation: what it is, whose, from when to when, and who asked for it.

    Raises:
        UsageError: There is no such allocation.
    """
    if number >= len(view.allocations):
        raise UsageError(f"there are allocations 0 to {len(view.allocations) - 1}")
    row = (
        view.allocations.slice(number, 1)
        .with_columns(pl.col("start_ns", "free_ns", "end_ns") - view.origin_ns)
        .with_columns(lasted_ns=pl.col("free_ns") - pl.col("start_ns"))
        .row(0, named=True)
    )
    gone = None if row["is_stack_of_free"] else _stack_of_event(view, row["free_event"])
    return {
        **{
            name: row[name]
            for name in (
                "allocation", "device", "requested_bytes", "size_bytes", "stream", "pool",
                "category", "confidence", "source", "name", "step", "phase", "line",
                "start_event", "free_event", "end_event", "is_stack_of_free",
                "start_ns", "free_ns", "end_ns", "lasted_ns",
            )
        },
        "address": f"{row['address']:#x}",
        "stack": _frames(view, row["stack"]),
        # A recorder that notes stacks of requests only gives each free that of its request.
        "free_stack": [] if gone == row["stack"] else _frames(view, gone),
    }  # fmt: skip


def _stack_of_event(view: MemoryView, event: int | None) -> int | None:
    if event is None:
        return None
    found = view.snapshot.events.slice(event, 1).select("stack").collect()["stack"]
    return None if found.is_empty() or found[0] is None else int(found[0])


def _frames(view: MemoryView, stack: int | None) -> list[dict[str, Any]]:
    """The frames of a stack, the innermost first."""
    if stack is None:
        return []
    numbers = view.snapshot.stacks["frames"][stack].head(_MOST_FRAMES)
    frames = view.snapshot.frames[numbers.cast(pl.Int64).to_list()].select(
        text=line_text(),
        filename=pl.col("filename").fill_null(""),
        is_python=pl.col("filename").str.ends_with(".py").fill_null(value=False),
    )
    return list(frames.iter_rows(named=True))


def segments_at(view: MemoryView, device: int, event: int) -> dict[str, Any] | None:
    """The largest segments with their cells; None where there is no caching allocator.

    Args:
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
    is_held = pl.col("state") == BlockState.ALLOCATED.value
    blocks = (
        state.blocks.with_columns(
            category=view.allocations["category"]
            .gather(state.blocks["allocation"])
            .cast(pl.String),
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
