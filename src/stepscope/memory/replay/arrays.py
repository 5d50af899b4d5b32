"""The columns of a snapshot that a replay works on, as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.memory.schema import ACTION, Action, Snapshot

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
NOT_GIVEN = -(2**63)
"""Stands for null in an array."""

CODES = {Action(word): code for code, word in enumerate(ACTION.categories)}


@dataclass(frozen=True)
class History:
    """Events as arrays, row for row; `NOT_GIVEN` where the file does not say."""

    device: npt.NDArray[np.int32]
    action: npt.NDArray[np.uint8]
    address: Int64Array
    size: Int64Array
    time_ns: Int64Array

    def rows(self, *actions: Action) -> Int64Array:
        """The rows of some actions that say where and how much."""
        wanted = np.isin(self.action, [CODES[action] for action in actions])
        wanted &= (self.address != NOT_GIVEN) & (self.size != NOT_GIVEN)
        return np.flatnonzero(wanted)

    def has(self, action: Action) -> bool:
        """Whether there is any event of an action."""
        return bool((self.action == CODES[action]).any())


def history_of(snapshot: Snapshot) -> History:
    """The events of a snapshot."""
    events = snapshot.events.select(
        "device", pl.col("action").to_physical(), "address", "size_bytes", "time_ns"
    ).collect()
    return History(
        events["device"].to_numpy(),
        events["action"].to_numpy().astype(np.uint8),
        *(whole(events[name]) for name in ("address", "size_bytes", "time_ns")),
    )


def whole(column: pl.Series) -> Int64Array:
    """A column of whole numbers, with `NOT_GIVEN` for null."""
    return column.cast(pl.Int64).fill_null(NOT_GIVEN).to_numpy()


def nullable(values: npt.NDArray[np.generic], absent: int = NOT_GIVEN) -> pl.Series:
    """The column of an array in which one number stands for null."""
    series = pl.Series(values)
    missing = values == absent
    return series.set(pl.Series(missing), None) if missing.any() else series


def largest(column: pl.Series) -> int:
    """The largest of whole numbers; 0 where there are none."""
    return int(column.max() or 0)  # type: ignore[arg-type]


def last_before(
    group: pl.Series, at: pl.Series, known_group: pl.Series, known_at: pl.Series
) -> Int64Array:
    """For each row the last known one of its group that begins no later; -1 where there is none."""
    count, known = len(group), len(known_group)
    groups = np.concatenate([known_group.to_numpy(), group.to_numpy()])
    places = np.concatenate([whole(known_at), whole(at)])
    order = np.lexsort((np.arange(known + count) >= known, places, groups))
    latest = np.maximum.accumulate(np.where(order < known, np.arange(len(order)), -1))
    row = np.where(latest >= 0, order[latest], -1)
    same = (row >= 0) & (groups[row] == groups[order])
    found = np.empty(known + count, np.int64)
    found[order] = np.where(same, row, -1)
    return found[known:]
