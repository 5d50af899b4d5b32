"""Memory that is reserved and not in use: why it cannot serve requests, and what holds it back.

A cached block serves only requests of its pool, its size class and its stream, so free memory is
judged within each of these groups. A segment goes back to the device only when all of it is free:
one small block that is in use pins the rest. Segments of a private pool stay as long as a CUDA
graph may use them: until the pool first gives one back, all that is free in it is pinned.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.memory.allocator.rounding import LARGE_STEP_BYTES, SMALL_SEGMENT_BYTES
from stepscope.memory.replay.state import State, state_at
from stepscope.memory.schema import BlockState
from stepscope.memory.view import MemoryView, Moment

_LARGE_PAGE_BYTES = 10 * LARGE_STEP_BYTES
_PRIVATE_POOL = "a private pool (CUDA graphs, torch.cuda.MemPool)"
"""What pins a segment that is wholly free, and does not go back."""


@dataclass(frozen=True)
class Fragmentation:
    """How the reserved memory was divided at a moment.

    `reserved_bytes` = `in_use_bytes` + `releasable_bytes` + `pinned_bytes`, in all and in each row
    of `groups` and `segments`.

    Attributes:
        in_use_bytes: In blocks that the program held, or that another stream still used.
        releasable_bytes: Free, and goes back to the device when it is asked to: segments that are
            wholly free, and whole free pages of expandable segments.
        pinned_bytes: Free, but in segments that are partly in use, or that a private pool keeps.
        groups: One row per pool, size class and stream: pool, size_class, stream, reserved_bytes,
            in_use_bytes, rounding_bytes (of what is in use, what nobody asked for),
            releasable_bytes, pinned_bytes, largest_free_bytes, free_blocks, fragmented_share (how
            much of the free bytes lies outside the largest free block).
        segments: Segments with free memory that is pinned, the most first: address, size_bytes,
            pool, size_class, stream, in_use_bytes, pinned_bytes, pins (blocks in use), pin_line
            and pin_category (of the largest of them; of none: the private pool that keeps it).
        lines: What pins: line, pinned_bytes (free bytes of the segments in which the line holds
            the largest block), in_use_bytes, segments, category.
    """

    device: int
    moment: str
    event: int
    time_ns: int | None
    reserved_bytes: int
    in_use_bytes: int
    releasable_bytes: int
    pinned_bytes: int
    largest_free_bytes: int
    groups: pl.DataFrame
    segments: pl.DataFrame
    lines: pl.DataFrame
    notes: tuple[str, ...]


def fragmentation(
    view: MemoryView, device: int | None = None, moment: Moment | None = None
) -> Fragmentation:
    """Divides the reserved memory.

    By default at the last failed request, else at the peak of the reserved bytes.
    """
    chosen = view.device(device) if moment is None else moment.device
    moment = moment or view.failure(chosen) or view.peak(chosen, "reserved_bytes")
    state = state_at(view.replay, chosen, moment.event)
    segments = _segments(view, state)
    groups = _groups(segments)
    notes = view.notes(chosen)
    if state.outside:
        notes = (*notes, f"{state.outside} blocks lie in no known segment and are left out")
    total = {name: int(segments[name].sum()) for name in _SUMMED}
    pinned = segments.filter(pl.col("pinned_bytes") > 0).sort(
        "pinned_bytes", "address", descending=[True, False]
    )
    return Fragmentation(
        device=chosen,
        moment=moment.what,
        event=moment.event,
        time_ns=moment.time_ns,
        reserved_bytes=total["size_bytes"],
        in_use_bytes=total["in_use_bytes"],
        releasable_bytes=total["releasable_bytes"],
        pinned_bytes=total["pinned_bytes"],
        largest_free_bytes=int(segments["largest_free_bytes"].max() or 0),  # type: ignore[arg-type]
        groups=groups,
        segments=pinned.select(
            "address", "size_bytes", "pool", "size_class", "stream", "in_use_bytes",
            "pinned_bytes", "pins", "pin_line", "pin_category",
        ),
        lines=_lines(pinned),
        notes=notes,
    )  # fmt: skip


_SUMMED = ("size_bytes", "in_use_bytes", "releasable_bytes", "pinned_bytes")


def _segments(view: MemoryView, state: State) -> pl.DataFrame:
    """The segments of a state, each with how it is divided and what pins it."""
    segments = state.segments.with_columns(
        size_class=pl.when("is_large")
        .then(pl.lit("large"))
        .when(~pl.col("is_large"))
        .then(pl.lit("small"))
        .otherwise(pl.lit("unknown"))
    )
    gone = view.replay.reserved.filter(
        (pl.col("device") == state.device) & (pl.col("end_event") <= state.event)
    )
    released = {None, 0, *gone["pool"]}
    is_kept = ~pl.Series([pool in released for pool in segments["pool"]], dtype=pl.Boolean)
    segments = segments.with_columns(is_kept=is_kept)
    blocks = state.blocks.with_columns(
        line=view.allocations["line"].gather(state.blocks["allocation"]),
        category=view.allocations["category"].gather(state.blocks["allocation"]).cast(pl.String),
        is_free=pl.col("state") == BlockState.INACTIVE.value,
    ).join(
        segments.select(
            "segment", "is_expandable", "is_large", "is_kept", pl.col("address").alias("begin"),
            pl.col("size_bytes").alias("room"),
        ),
        on="segment",
        how="left",
        maintain_order="left",
    )  # fmt: skip
    size, is_free = pl.col("size_bytes"), pl.col("is_free")
    page = (
        pl.when(pl.col("is_large").fill_null(value=True))
        .then(_LARGE_PAGE_BYTES)
        .otherwise(SMALL_SEGMENT_BYTES)
    )
    offset = pl.col("address") - pl.col("begin")
    pages = ((offset + size) // page - (offset + page - 1) // page).clip(lower_bound=0) * page
    is_whole = size == pl.col("room")
    blocks = blocks.with_columns(
        releasable_bytes=pl.when(~is_free | pl.col("is_kept"))
        .then(0)
        .when(is_whole)
        .then(size)
        .when("is_expandable")
        .then(pages)
        .otherwise(0)
    )
    sums = blocks.group_by("segment").agg(
        size.filter(~is_free).sum().alias("in_use_bytes"),
        pl.col("requested_bytes").filter(~is_free).sum(),
        pl.col("releasable_bytes").sum(),
        size.filter(is_free).max().fill_null(0).alias("largest_free_bytes"),
        is_free.sum().cast(pl.Int64).alias("free_blocks"),
        (~is_free).sum().cast(pl.Int64).alias("pins"),
        *(
            pl.col(name)
            .filter(~is_free)
            .sort_by(size.filter(~is_free), descending=True)
            .first()
            .alias(f"pin_{name}")
            for name in ("line", "category")
        ),
    )
    return segments.join(sums, on="segment", how="left", maintain_order="left").with_columns(
        pinned_bytes=size - pl.col("in_use_bytes") - pl.col("releasable_bytes"),
        pin_line=pl.when(pl.col("is_kept") & (pl.col("pins") == 0))
        .then(pl.lit(_PRIVATE_POOL))
        .otherwise("pin_line"),
    )


def _groups(segments: pl.DataFrame) -> pl.DataFrame:
    free = pl.col("releasable_bytes") + pl.col("pinned_bytes")
    return (
        segments.group_by("pool", "size_class", "stream")
        .agg(
            pl.col("size_bytes").sum().alias("reserved_bytes"),
            pl.col("in_use_bytes").sum(),
            (pl.col("in_use_bytes") - pl.col("requested_bytes")).sum().alias("rounding_bytes"),
            pl.col("releasable_bytes").sum(),
            pl.col("pinned_bytes").sum(),
            pl.col("largest_free_bytes").max(),
            pl.col("free_blocks").sum(),
        )
        .with_columns(
            fragmented_share=pl.when(free > 0).then(1 - pl.col("largest_free_bytes") / free)
        )
        .sort("reserved_bytes", "pool", "size_class", "stream", descending=[True] + [False] * 3)
    )


def _lines(pinned: pl.DataFrame) -> pl.DataFrame:
    return (
        pinned.group_by(pl.col("pin_line").alias("line"))
        .agg(
            pl.col("pinned_bytes").sum(),
            pl.col("in_use_bytes").sum(),
            pl.len().cast(pl.Int64).alias("segments"),
            pl.col("pin_category").first().alias("category"),
        )
        .sort("pinned_bytes", "line", descending=[True, False])
    )
