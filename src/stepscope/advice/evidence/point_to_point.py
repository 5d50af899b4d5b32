"""Sends and receives of a window: the stages of a pipeline wait in them for each other.

That is no collective which a rank is late for, which takes too long, or which computation could
hide: a stage has nothing to compute before its neighbour has. Rules about collectives leave them
out, and `pipeline-bubble` is about them. The time that they need to move data is communication like
any other, and part of `exposed-communication`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.advice.evidence.window_view import WindowView
from stepscope.analysis.calls.collectives import POINT_TO_POINT
from stepscope.analysis.communication import analyse_communication
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray


@dataclass(frozen=True)
class PointToPoint:
    """The sends and receives of a window.

    Attributes:
        collectives: Columns `calls.collectives.COLLECTIVES`.
        is_one: For each node of the graph, whether it is one.
        exposed_ns: Time of all devices in them with no other work beside.
        transfer_ns: What each needs to move its data: at most what the shortest takes.
    """

    collectives: pl.DataFrame
    is_one: BoolArray
    exposed_ns: int
    transfer_ns: int

    @property
    def exposed_transfer_ns(self) -> int:
        """The part of `exposed_ns` in which they move data."""
        return min(self.exposed_ns, len(self.collectives) * self.transfer_ns)

    @property
    def exposed_wait_ns(self) -> int:
        """The part of `exposed_ns` in which they wait for other ranks."""
        return self.exposed_ns - self.exposed_transfer_ns


def point_to_point(window: WindowView) -> PointToPoint:
    """The sends and receives, found once."""
    return window.once(_point_to_point)


def _point_to_point(window: WindowView) -> PointToPoint:
    everything = analyse_communication(window.trace, window.scope).collectives
    found = everything.filter(pl.col("kind") == POINT_TO_POINT)
    is_one = np.zeros(len(window.graph), np.bool_)
    if found.is_empty():
        return PointToPoint(found, is_one, 0, 0)
    work = window.work
    rows = work["event"].is_in(found["event"].implode())
    is_one[work.filter(rows)["node"].to_numpy()] = True
    exposed_ns = 0
    for device in work["device"].drop_nulls().unique().to_list():
        mine = work["device"] == device
        exchanging = window.spans(work.filter(mine & rows))
        others = window.spans(work.filter(mine & ~rows))
        exposed_ns += intervals.difference(exchanging, others).total_ns
    return PointToPoint(found, is_one, exposed_ns, int(found["dur_ns"].to_numpy().min()))


def without_point_to_point(collectives: pl.DataFrame) -> pl.DataFrame:
    """Collectives of all kinds but sends and receives."""
    return collectives.filter(pl.col("kind").ne_missing(POINT_TO_POINT))
