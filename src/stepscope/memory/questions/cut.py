"""A part of a history by itself: what was held at its end, and the events that led there."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from stepscope.errors import UsageError
from stepscope.memory.questions.moments import moment_of
from stepscope.memory.replay.arrays import gathered, whole
from stepscope.memory.replay.state import State, state_at
from stepscope.memory.schema import BLOCKS, SEGMENTS, BlockState, Types
from stepscope.memory.view import MemoryView


def cut(
    view: MemoryView, device: int | None, from_text: str | None, to_text: str | None
) -> MemoryView:
    """The part of one device's history between two moments.

    What is held at its end is what the whole history held then, so that every question has the
    answer that a recording of that part alone would have. Events are numbered anew.

    Args:
        view: The whole history.
        device: The device; None: the fullest.
        from_text: The moment at which it begins; None: the start.
        to_text: The moment at which it ends; None: the end.

    Raises:
        UsageError: The history has no such moment, or the part ends before it begins.
    """
    chosen = view.device(device)
    begin = moment_of(view, chosen, from_text or "start")
    end = moment_of(view, chosen, to_text or "end")
    if end.event <= begin.event:
        raise UsageError(
            f"{view.snapshot.path}: nothing is between {from_text or 'start'} and "
            f"{to_text or 'end'}: the second is not after the first"
        )
    state = state_at(view.replay, chosen, end.event)
    snapshot = view.snapshot
    events = (
        snapshot.events.filter(
            (pl.col("device") == chosen)
            & (pl.col("event") > begin.event)
            & (pl.col("event") <= end.event)
        )
        .with_columns(event=pl.int_range(pl.len(), dtype=pl.Int64))
        .collect()
    )
    stacks = gathered(
        view.replay.allocations["stack"].cast(pl.Int64),
        whole(state.blocks["allocation"].fill_null(-1)),
    )
    blocks = state.blocks.with_columns(stack=stacks, block=pl.int_range(pl.len()))
    part = replace(
        snapshot,
        events=events.lazy(),
        segments=_segments(state, chosen),
        blocks=_filled(blocks, BLOCKS),
    )
    words = f"only device {chosen} from {from_text or 'the start'} to {to_text or 'the end'}"
    return replace(view, snapshot=part, remarks=(*view.remarks, words))


def _segments(state: State, device: int) -> pl.DataFrame:
    size, kind = pl.col("size_bytes"), pl.col("state").cast(pl.String)
    is_held = kind == BlockState.ALLOCATED.value
    is_active = kind != BlockState.INACTIVE.value
    sums = state.blocks.group_by("segment").agg(
        size.filter(is_held).sum().alias("allocated_bytes"),
        size.filter(is_active).sum().alias("active_bytes"),
        pl.col("requested_bytes").filter(is_active).sum(),
    )
    segments = state.segments.join(sums, on="segment", how="left", maintain_order="left")
    return _filled(segments.with_columns(device=pl.lit(device)), SEGMENTS)


def _filled(table: pl.DataFrame, schema: Types) -> pl.DataFrame:
    """A table with all columns of its schema; null where there is none."""
    return table.select(
        (pl.col(name) if name in table.columns else pl.lit(None)).cast(kind).alias(name)
        for name, kind in schema.items()
    )
