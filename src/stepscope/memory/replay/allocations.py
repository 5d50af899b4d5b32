"""Which blocks the program held, and when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.memory.allocator.rounding import rounded_sizes
from stepscope.memory.allocator.settings import settings_of
from stepscope.memory.replay.arrays import (
    CODES,
    History,
    Int64Array,
    last_before,
    nullable,
    whole,
)
from stepscope.memory.replay.pairing import ASKED_TO_GO, AT_SNAPSHOT, BEGIN, END, NONE, Paired, pair
from stepscope.memory.schema import EXACT_SIZES, Action, BlockState, Snapshot, Types

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


@dataclass(frozen=True)
class Blocks:
    """The blocks that the program held.

    Attributes:
        allocations: With the columns of `ALLOCATIONS`.
        contradictions: Kind (of `pairing`), event (`NONE` at the snapshot), device and address.
    """

    allocations: pl.DataFrame
    contradictions: tuple[npt.NDArray[np.uint8], Int64Array, Int64Array, Int64Array]


def replay_blocks(snapshot: Snapshot, history: History) -> Blocks:
    """Replays blocks."""
    rows = history.rows(Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
    meanings = np.full(256, END, np.uint8)
    meanings[CODES[Action.ALLOC]] = BEGIN
    active = snapshot.blocks.filter(
        (pl.col("state") != BlockState.INACTIVE.value) & pl.col("address").is_not_null()
    ).join(
        snapshot.segments.select("segment", "device", "stream", "pool"), on="segment", how="left"
    )
    has_completions = records_completions(snapshot, history)
    # Without events of one kind, the other is all there is of a free.
    has_both = has_completions and history.has(Action.FREE_REQUESTED)
    meanings[CODES[Action.FREE_REQUESTED]] = ASKED_TO_GO if has_completions else END
    final = np.full(len(active), AT_SNAPSHOT, np.uint8)
    asked = whole(active["requested_bytes"].fill_null(active["size_bytes"]))
    device = np.concatenate([history.device[rows], active["device"].to_numpy()])
    address = np.concatenate([history.address[rows], whole(active["address"])])
    number = np.concatenate([rows, np.arange(len(active))])
    size = np.concatenate([history.size[rows], asked])
    is_going = np.concatenate(
        [
            np.zeros(len(rows), np.bool_),
            (active["state"] == BlockState.PENDING_FREE.value).to_numpy(),
        ]
    )
    what = np.concatenate([meanings[history.action[rows]], final])
    paired = pair(device, address, what, size, number, is_going)
    is_final = what == AT_SNAPSHOT
    at = np.where(is_final[paired.rows], NONE, number[paired.rows])
    return Blocks(
        _table(
            snapshot, history, active, paired, is_final, is_going, number, size, device, address,
            has_both=has_both,
        ),
        (paired.kinds, at, device[paired.rows].astype(np.int64), address[paired.rows]),
    )  # fmt: skip


def records_completions(snapshot: Snapshot, history: History) -> bool:
    """Whether the recorder noted when a free was complete.

    That can be switched off; then the request to free is all there is of an end. Where
    nothing at all was completed, that is so unless every block given back still waits.
    """
    if history.has(Action.FREE_COMPLETED):
        return True
    requested = np.unique(history.address[history.rows(Action.FREE_REQUESTED)])
    waiting = snapshot.blocks.filter(pl.col("state") == BlockState.PENDING_FREE.value)["address"]
    return bool(np.isin(requested, waiting.drop_nulls().to_numpy()).all())


def _table(
    snapshot: Snapshot,
    history: History,
    active: pl.DataFrame,
    paired: Paired,
    is_final: npt.NDArray[np.bool_],
    is_going: npt.NDArray[np.bool_],
    number: Int64Array,
    size: Int64Array,
    device: npt.NDArray[np.int32],
    address: Int64Array,
    *,
    has_both: bool,
) -> pl.DataFrame:
    from_block = is_final[paired.key]
    event = np.where(from_block, NONE, number[paired.key])  # where it first appears
    final = np.where(from_block, number[paired.key], paired.final)
    requested = size[paired.key]

    def of_events(name: str, at: pl.Series) -> pl.Series:
        return snapshot.events.select(name).collect()[name].gather(at)

    at_event, at_block = nullable(event, NONE), nullable(final, NONE)
    times = nullable(history.time_ns)
    divisions = settings_of(snapshot.settings).power2_divisions
    in_block = active["size_bytes"].gather(at_block)
    is_exact = snapshot.settings.get(EXACT_SIZES) is True
    rounded = pl.Series(requested if is_exact else rounded_sizes(requested, divisions))
    # A free that completes was requested. Where no event says when, that was before the recording;
    # but within it if the block was requested in it, or where no event ever says: at the latest
    # when the block was free.
    is_untold = (paired.asked == NONE) & (paired.end != NONE)
    is_before = is_untold & (paired.begin == NONE) & has_both
    given_back = np.where(is_untold & ~is_before, paired.end, paired.asked)
    is_before |= from_block & is_going[paired.key]
    begins = np.where(from_block | ~paired.is_begin_known, False, paired.begin == event)
    is_known = pl.Series(begins)
    block_stack = active["stack"].gather(at_block)
    event_stack = of_events("stack", at_event)
    # The snapshot knows who asked for a block that is still there; a free only who gave it back.
    stack = event_stack.zip_with(is_known, block_stack.fill_null(event_stack))
    of_free = ~is_known & block_stack.is_null() & event_stack.is_not_null()
    start, free, end = (nullable(at, NONE) for at in (paired.begin, given_back, paired.end))
    table = pl.DataFrame(
        {
            "allocation": np.arange(len(event)),
            "device": device[paired.key],
            "address": address[paired.key],
            "requested_bytes": requested,
            "size_bytes": in_block.fill_null(rounded),
            "stream": of_events("stream", at_event).fill_null(active["stream"].gather(at_block)),
            "pool": of_events("pool", at_event).fill_null(active["pool"].gather(at_block)),
            "stack": stack,
            "is_stack_of_free": of_free,
            "start_event": start,
            "free_event": free,
            "end_event": end,
            "is_given_back_before": is_before,
            "start_ns": times.gather(start),
            "free_ns": times.gather(free),
            "end_ns": times.gather(end),
            "block": active["block"].gather(at_block),
            "metadata": of_events("metadata", nullable(np.where(begins, event, NONE), NONE)),
            "category": of_events("category", at_event),
        }
    )
    return _with_pools(snapshot, table).select(
        pl.col(name).cast(kind) for name, kind in ALLOCATIONS.items()
    )


def _with_pools(snapshot: Snapshot, allocations: pl.DataFrame) -> pl.DataFrame:
    """Finds pools that no event says: by the segment that now holds the address."""
    if allocations["pool"].null_count() == 0:
        return allocations
    if len(snapshot.pools) == 1:  # where everything is in the default pool, so is what is gone
        return allocations.with_columns(pl.col("pool").fill_null(0))
    segments = snapshot.segments.filter(pl.col("address").is_not_null())
    place = last_before(
        allocations["device"], allocations["address"], segments["device"], segments["address"]
    )
    rows = nullable(place, NONE)
    is_inside = allocations["address"] < (segments["address"] + segments["size_bytes"]).gather(rows)
    found = segments["pool"].gather(rows)
    return allocations.with_columns(pool=pl.coalesce("pool", pl.when(is_inside).then(found)))
