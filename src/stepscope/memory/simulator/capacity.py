"""How much memory the allocator could have had: what a history tells about it.

A snapshot does not say how large the device is, or what others took of it. But a request that
failed says what was free then, and a retry says that the device could not give a segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.memory.allocator.rounding import (
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
    segment_bytes,
)
from stepscope.memory.allocator.settings import AllocatorSettings, settings_of
from stepscope.memory.replay.arrays import largest
from stepscope.memory.replay.replay import Replay
from stepscope.memory.schema import Action
from stepscope.memory.simulator.operations import ReleaseCause, releases_of


@dataclass(frozen=True)
class Capacity:
    """What the allocator could reserve.

    Attributes:
        bytes: The most that it could have reserved; None: the history does not tell.
        is_exact: Whether that is what the device said, rather than less than some request needed.
        is_limit: Whether it is a limit of the process, rather than of the device.
        most_bytes: What it certainly could not have reserved more than; None: not known.
    """

    bytes: int | None
    is_exact: bool
    source: str
    is_limit: bool = False
    most_bytes: int | None = None


def capacity_of(replay: Replay, device: int) -> Capacity:
    """What the allocator of a device could reserve, as far as the history tells.

    A failed request shows it: what was reserved, and what the device had free beside it. Where the
    device had enough for the request, a limit of the process (`set_per_process_memory_fraction`)
    stopped it: it is at least what was ever reserved, and less than what the request would have
    made of it. Without a failure, the most
    that was ever reserved before a retry is known to have been possible.
    """
    settings = settings_of(replay.snapshot.settings)
    curve = replay.curve.filter(pl.col("device") == device).select("event", "reserved_bytes")
    failed = (
        replay.snapshot.events.filter(
            (pl.col("device") == device) & (pl.col("action") == Action.OOM.value)
        )
        .select("event", "size_bytes", "device_free_bytes")
        .collect()
        .join(curve, on="event", how="inner")
        .filter(pl.col("device_free_bytes").is_not_null() & pl.col("size_bytes").is_not_null())
    )
    if len(failed):
        row = failed.row(-1, named=True)
        reserved, free = int(row["reserved_bytes"]), int(row["device_free_bytes"])
        needed = needed_bytes(int(row["size_bytes"]), settings)
        if needed > free:
            return Capacity(
                reserved + free,
                True,
                "what was reserved and free when a request failed",
                most_bytes=reserved + free,
            )
        return Capacity(
            max(largest(curve["reserved_bytes"]), reserved),
            False,
            "a limit of the process stopped a request although the device had enough free",
            is_limit=True,
            most_bytes=reserved + needed - 1,
        )
    retries = [r for r in releases_of(replay, device) if r.cause is ReleaseCause.RETRY]
    if retries:
        most = largest(curve["reserved_bytes"])
        return Capacity(most, False, "the most that was reserved; the device had no room for more")
    return Capacity(None, False, "no request ever failed or was tried again")


def needed_bytes(size: int, settings: AllocatorSettings) -> int:
    """What the device must have for a rounded request that no cached block can serve.

    That is a segment; of an expandable one, whole pages.
    """
    if settings.expandable_segments:
        page = SMALL_SEGMENT_BYTES if size <= SMALL_BYTES else settings.large_segment_bytes
        return -(-size // page) * page
    return int(segment_bytes(size, settings.large_segment_bytes))
