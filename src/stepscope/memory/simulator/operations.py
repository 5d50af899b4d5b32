"""What a program asked of the allocator: a replayed history as operations for the simulator.

Requests and frees are the program's. What the allocator gave back to the device is its own doing,
and follows from its rules, with one exception: the program may have called `empty_cache`. The two
differ by their stacks, and, without these, by what comes next: the allocator gives memory
back only to ask for more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.memory.allocator.rounding import SMALL_BYTES, SMALL_SEGMENT_BYTES
from stepscope.memory.allocator.settings import settings_of
from stepscope.memory.replay.arrays import Int64Array, last_before, whole
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import EXACT_SIZES, Action
from stepscope.memory.simulator.machine import (
    FAILED,
    FREED,
    GIVE,
    LET_POOL_GO,
    RELEASE,
    RELEASE_FOR_REQUEST,
    RELEASE_SEGMENT,
    REQUEST,
)

_GIVES_BACK = (Action.SEGMENT_FREE.value, Action.SEGMENT_UNMAP.value)
_ASKS = (Action.SEGMENT_ALLOC.value, Action.SEGMENT_MAP.value, Action.OOM.value)


class ReleaseCause(str, Enum):
    """Why cached memory went back to the device."""

    PROGRAM = "program"
    """The program called `empty_cache`."""
    RETRY = "retry"
    """The device had no room for a segment: everything cached was given back first."""


class Operations(NamedTuple):
    """A history as operations in order of time; arrays row for row.

    Attributes:
        event: The event that each follows from; -1: it comes before the first.
        what: As in `run_by_loop`.
        size: Bytes of requests.
        place: Number of pool and stream, or an address.
        allocation: -> allocations of the replay; -1: none.
    """

    event: Int64Array
    what: Int64Array
    size: Int64Array
    place: Int64Array
    allocation: Int64Array


@dataclass(frozen=True)
class Release:
    """Cached memory that went back to the device at once."""

    first_event: int
    last_event: int
    cause: ReleaseCause
    asked_event: int | None
    """The event that needed the memory; None where the program released."""


def releases_of(replay: Replay, device: int) -> list[Release]:
    """When cached memory went back to the device, and why; never where nothing is cached."""
    if replay.snapshot.settings.get(EXACT_SIZES):
        return []
    mine = replay.snapshot.events.filter(pl.col("device") == device)
    goes = pl.col("action").cast(pl.String).is_in(_GIVES_BACK)
    if mine.filter(goes).select(pl.len()).collect().item() == 0:
        return []
    events = (
        mine.select("event", pl.col("action").cast(pl.String), "address", "size_bytes", "stack")
        .filter(~pl.col("action").is_in([Action.SNAPSHOT.value, Action.ANNOTATE.value]))
        .with_row_index("row")
        .collect()
    )
    is_given_back = events["action"].is_in(_GIVES_BACK)
    emptying = _emptying_stacks(replay)
    # While everything is given back, blocks that waited for other streams become free as well.
    passive = is_given_back | (events["action"] == Action.FREE_COMPLETED.value)
    run = (passive != passive.shift(fill_value=False)).cum_sum()
    found = []
    # Most runs are single frees, and there are as many as requests: only the others are looked at.
    with_runs = events.with_columns(run=run).filter(is_given_back)
    for given in with_runs.partition_by("run"):
        last = int(given["row"][-1])
        following = events.row(last + 1, named=True) if last + 1 < len(events) else None
        stack = given["stack"][-1]
        cause = ReleaseCause.PROGRAM
        if stack not in emptying and following is not None and following["action"] in _ASKS:
            has_both = stack is not None and following["stack"] is not None
            if not has_both or stack == following["stack"]:
                cause = ReleaseCause.RETRY
        asked = following["event"] if following and cause is ReleaseCause.RETRY else None
        found.append(Release(int(given["event"][0]), int(given["event"][-1]), cause, asked))
    return found


def _emptying_stacks(replay: Replay) -> set[int]:
    """Stacks in which the program calls `empty_cache`."""
    snapshot = replay.snapshot
    frames = snapshot.frames.filter(pl.col("name").str.contains("empty_?[cC]ache"))["frame"]
    within = snapshot.stacks.filter(
        pl.col("frames").list.eval(pl.element().is_in(frames.implode())).list.any()
    )
    return set(within["stack"])


class Requests(NamedTuple):
    """The requests and frees of one device. The settings of a simulation do not change them.

    Attributes:
        stretches: What was reserved of the device.
        places: The number of each pair of pool and stream.
    """

    stretches: pl.DataFrame
    places: dict[tuple[int, int], int]
    operations: Operations


def requests_of(replay: Replay, device: int, failed: pl.DataFrame | None = None) -> Requests:
    """The operations of a device, in order; first, what was active before the recording.

    Where the recorded allocator may have given single segments back (garbage collection, or blocks
    that are never split), each goes as recorded. `failed` are the requests that failed, as
    `failed_requests` returns them; by default as recorded.
    """
    stretches = stretches_of(replay, device)
    places = {(0, 0): 0}
    for things in (stretches, replay.allocations.filter(pl.col("device") == device)):
        place_numbers(things, places)
    recorded = settings_of(replay.snapshot.settings)
    is_by_segment = recorded.max_split_bytes is not None or recorded.garbage_collection_threshold
    if failed is None:
        failed = failed_requests(replay, device)
    parts = _released_pools(stretches, places)
    for release in releases_of(replay, device):
        segments = _single_segments(replay, device, release) if is_by_segment else None
        if segments is not None:
            parts.append(_part(RELEASE_SEGMENT, segments["event"], place=segments["address"]))
        else:
            kind = RELEASE if release.cause is ReleaseCause.PROGRAM else RELEASE_FOR_REQUEST
            parts.append(_part(kind, pl.Series([release.last_event])))
    parts += _lives(replay, device, places)
    # Requests that failed may have a place of their own.
    parts.append(
        _part(FAILED, failed["event"], failed["size_bytes"], place_numbers(failed, places))
    )
    table = pl.concat(parts)
    event, what = whole(table["event"]), whole(table["what"])
    # In one event, what goes makes room for what comes.
    rank = np.ones(FAILED + 1, np.int64)
    rank[LET_POOL_GO], rank[[REQUEST, FAILED]] = 0, 2
    order = np.argsort(4 * event + rank[what], kind="stable")
    what, allocation = what[order], whole(table["allocation"])[order]
    # A block that nothing waits for needs not be given back before it can be used again.
    follows = (what[1:] == FREED) & (allocation[1:] == allocation[:-1])
    is_needed = np.append(~((what[:-1] == GIVE) & follows), True)[: len(order)]
    order = order[is_needed]
    history = Operations(
        event[order], what[is_needed], whole(table["size"])[order], whole(table["place"])[order],
        allocation[is_needed],
    )  # fmt: skip
    before = _before(replay, device, places)
    operations = Operations(*map(np.concatenate, zip(before, history, strict=True)))
    return Requests(stretches, places, operations)


def _single_segments(replay: Replay, device: int, release: Release) -> pl.DataFrame | None:
    """The segments that a release gave back; None where it gave everything back."""
    if release.cause is not ReleaseCause.RETRY:
        return None
    given = (
        replay.snapshot.events.filter(
            (pl.col("device") == device)
            & pl.col("event").is_between(release.first_event, release.last_event)
        )
        .select("event", "address", pl.col("action").cast(pl.String))
        .collect()
    )
    if (given["action"] != Action.SEGMENT_FREE.value).any():
        return None
    return given


def _released_pools(
    stretches: pl.DataFrame, places: dict[tuple[int, int], int]
) -> list[pl.DataFrame]:
    """Private pools keep their memory as long as a graph may use it: until they first give back."""
    gone = stretches.filter((pl.col("pool") != 0) & pl.col("end_event").is_not_null())
    parts = []
    for pool, event in gone.group_by("pool").agg(pl.col("end_event").min()).iter_rows():
        groups = [2 * n + k for (p, _), n in places.items() if p == pool for k in (0, 1)]
        parts.append(_part(LET_POOL_GO, pl.Series([event] * len(groups)), place=pl.Series(groups)))
    return parts


def _before(replay: Replay, device: int, places: dict[tuple[int, int], int]) -> Operations:
    """Requests for what was active before the recording, in order of addresses."""
    mine = replay.allocations.filter(
        (pl.col("device") == device) & pl.col("start_event").is_null()
    ).sort("address")
    before = pl.zeros(len(mine), dtype=pl.Int64, eager=True) - 1
    place = place_numbers(mine, places)
    waits = mine.filter("is_given_back_before")
    table = pl.concat(
        [
            _part(REQUEST, before, mine["requested_bytes"], place, mine["allocation"]),
            _part(GIVE, before.head(len(waits)), allocation=waits["allocation"]),
        ]
    )
    return Operations(*(whole(table[name]) for name in table.columns))


def _part(
    what: int,
    event: pl.Series,
    size: pl.Series | None = None,
    place: pl.Series | None = None,
    allocation: pl.Series | None = None,
) -> pl.DataFrame:
    count = len(event)
    nothing = pl.zeros(count, dtype=pl.Int64, eager=True)
    return pl.DataFrame(
        {
            "event": event.cast(pl.Int64),
            "what": pl.Series([what], dtype=pl.Int64).new_from_index(0, count),
            "size": nothing if size is None else size,
            "place": nothing if place is None else place.cast(pl.Int64),
            "allocation": nothing - 1 if allocation is None else allocation,
        }
    )


def _lives(replay: Replay, device: int, places: dict[tuple[int, int], int]) -> list[pl.DataFrame]:
    mine = replay.allocations.filter(pl.col("device") == device)
    begun = mine.filter(pl.col("start_event").is_not_null())
    place = place_numbers(begun, places)
    waits = mine.filter(
        pl.col("free_event").is_not_null()
        & (pl.col("end_event").is_null() | (pl.col("end_event") > pl.col("free_event")))
    )
    gone = mine.filter(pl.col("end_event").is_not_null())
    return [
        _part(REQUEST, begun["start_event"], begun["requested_bytes"], place, begun["allocation"]),
        _part(GIVE, waits["free_event"], allocation=waits["allocation"]),
        _part(FREED, gone["end_event"], allocation=gone["allocation"]),
    ]


def stretches_of(replay: Replay, device: int) -> pl.DataFrame:
    """What was reserved of a device, with the size class of each stretch.

    Where the snapshot does not say it, a stretch that held a block of more than 1 MiB is of the
    large class, and one that held only smaller ones of the small; one that held nothing is small
    where it is of the size of a small segment.
    """
    stretches = replay.reserved.filter(pl.col("device") == device)
    if not stretches["is_large"].null_count():
        return stretches
    lives = replay.allocations.filter(pl.col("device") == device)
    inside = last_before(
        lives["device"], lives["address"], stretches["device"], stretches["address"]
    )
    # Of stretches that follow each other at one address the last is found; they are alike.
    largest = (
        lives.with_columns(address=pl.Series(inside))
        .filter(pl.col("address") >= 0)
        .with_columns(first=stretches["address"].gather(pl.Series(inside).filter(inside >= 0)))
        .group_by("first")
        .agg(pl.col("size_bytes").max().alias("largest"))
    )
    joined = stretches.join(
        largest, left_on="address", right_on="first", how="left", maintain_order="left"
    )
    is_large = (
        pl.when(pl.col("largest").is_not_null())
        .then(pl.col("largest") > SMALL_BYTES)
        .otherwise(pl.col("size_bytes") != SMALL_SEGMENT_BYTES)
    )
    return joined.with_columns(pl.col("is_large").fill_null(is_large)).drop("largest")


def place_numbers(things: pl.DataFrame, places: dict[tuple[int, int], int]) -> pl.Series:
    """The number of pool and stream of each row; a pair that is new gets the next."""
    pairs = things.select(pl.col("pool").fill_null(0), pl.col("stream").fill_null(0))
    distinct = pairs.unique(maintain_order=True)
    numbers = [places.setdefault(pair, len(places)) for pair in distinct.iter_rows()]
    table = distinct.with_columns(place=pl.Series(numbers, dtype=pl.Int64))
    return pairs.join(table, on=["pool", "stream"], how="left", maintain_order="left")["place"]


def failed_requests(replay: Replay, device: int) -> pl.DataFrame:
    """The requests of a device that failed: event, size_bytes (rounded), pool, stream."""
    return (
        replay.snapshot.events.filter(
            (pl.col("device") == device)
            & (pl.col("action") == Action.OOM.value)
            & pl.col("size_bytes").is_not_null()
        )
        .select("event", "size_bytes", "pool", "stream")
        .collect()
    )
