"""What the caching allocator did meanwhile: a snapshot's history beside a trace, on one clock."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.memory.schema import Action
from stepscope.memory.simulator.operations import ReleaseCause, releases_of
from stepscope.memory.view import MemoryView
from stepscope.trace.arrays.intervals import Int64Array

MEANWHILE: dict[str, pl.DataType | type[pl.DataType]] = {
    "retries": pl.Int64,  # the device had no room: everything cached was given back first
    "device_calls": pl.Int64,  # segments that were got from the device or given back
}
"""One row per stretch of time."""

_CALLS = [
    action.value
    for action in (
        Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP,
    )
]  # fmt: skip


def allocator_meanwhile(
    view: MemoryView, device: int, first_ns: Int64Array, last_ns: Int64Array
) -> pl.DataFrame:
    """What the allocator of a device did in some stretches of time.

    Args:
        first_ns: When each stretch begins, in nanoseconds since 1970.
        last_ns: When it ends; the end counts.

    Returns:
        With the columns of `MEANWHILE`, row for row.
    """
    curve = view.curve(device).drop_nulls("time_ns")
    mine = view.snapshot.events.filter(pl.col("device") == device)
    calls = mine.filter(pl.col("action").cast(pl.String).is_in(_CALLS)).select("time_ns")
    called = np.sort(calls.collect()["time_ns"].drop_nulls().to_numpy())
    asked = [one.asked_event for one in releases_of(view.replay, device)
             if one.cause is ReleaseCause.RETRY]  # fmt: skip
    retried = np.sort(curve.filter(pl.col("event").is_in(asked))["time_ns"].to_numpy())

    def within(moments: Int64Array) -> Int64Array:
        first = np.searchsorted(moments, first_ns, side="left")
        return np.asarray(np.searchsorted(moments, last_ns, side="right") - first)

    return pl.DataFrame(
        {
            "retries": within(retried),
            "device_calls": within(called),
        },
        schema=MEANWHILE,
    )
