"""How far a rank's host and its device got from one of its collectives to the next."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.ranks.launch_columns import (
    DEVICE_WORK,
    HOST_WAITS,
    LAUNCHED_WORK,
    OWN_DEVICE,
    OWN_HOST,
    QUEUED,
    READY,
    UNLAUNCHED,
)

Numbers = npt.NDArray[np.int64]

UNKNOWN = -(2**62)
"""Stands for what is not known."""


def launches(
    rows: pl.DataFrame, rank: Numbers, collective: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Of each row the one launched before it, the host's own time and waits since then, the rest.

    Args:
        rows: Columns `matched.ARRIVALS` and those of `launch_columns` that are known.
        rank: Of each row.
        collective: Of each row, its number in order.

    Returns:
        As `matched.Matched` has them: launched before, `OWN_HOST`, `HOST_WAITS` and `QUEUED`.
    """
    if OWN_HOST not in rows.columns or not len(rows):
        before = np.full(len(rows), -1, np.int64)
        return before, np.zeros_like(before), np.zeros_like(before), before.copy()
    known = rows[OWN_HOST].is_not_null().to_numpy()
    before = _last_known(known, rank, collective)

    def since(column: str) -> Numbers:
        if column not in rows.columns:
            return np.zeros_like(before)
        clock = rows[column].fill_null(0).to_numpy().astype(np.int64)
        later = np.maximum(clock - clock[before], 0)
        return np.where(known & (before >= 0), later, 0).astype(np.int64)

    queued = rows[QUEUED].fill_null(-1).to_numpy().astype(np.int64)
    queued = np.where(known, np.maximum(queued, 0), -1)
    return before, since(OWN_HOST), since(HOST_WAITS), queued


def devices(
    rows: pl.DataFrame, rank: Numbers, collective: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers]:
    """Of each row the one before it, the device's own time since then, two parts of it, the rest.

    Args:
        rows: See `launches`, as for the others.
        rank: Likewise.
        collective: Likewise.

    Returns:
        Worked before, `OWN_DEVICE`, `DEVICE_WORK`, `UNLAUNCHED`, `READY` and `LAUNCHED_WORK`.
    """
    nothing = np.zeros(len(rows), np.int64)
    if OWN_DEVICE not in rows.columns or not len(rows):
        return nothing - 1, nothing, nothing, nothing, nothing + UNKNOWN, nothing + UNKNOWN
    known = rows[OWN_DEVICE].is_not_null().to_numpy()
    before = _last_known(known, rank, collective)

    def numbers(column: str, otherwise: int) -> Numbers:
        if column not in rows.columns:
            return nothing + otherwise
        return rows[column].fill_null(otherwise).to_numpy().astype(np.int64)

    def since(column: str) -> Numbers:
        clock = numbers(column, 0)
        return np.where(known & (before >= 0), clock - clock[before], 0).astype(np.int64)

    parts = since(OWN_DEVICE), since(DEVICE_WORK), since(UNLAUNCHED)
    return before, *parts, numbers(READY, UNKNOWN), numbers(LAUNCHED_WORK, UNKNOWN)


def _last_known(known: npt.NDArray[np.bool_], rank: Numbers, collective: Numbers) -> Numbers:
    """Of each row the last one of its rank before it of which something is known; -1: none.

    Where its collective is numbered later, as ranks came to them in different orders, there is
    none either.
    """
    before = np.full(len(known), -1, np.int64)
    latest = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    before[1:] = latest[:-1]
    before[(before >= 0) & ((rank[before] != rank) | (collective[before] >= collective))] = -1
    return before
