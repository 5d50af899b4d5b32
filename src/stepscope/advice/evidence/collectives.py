"""Collectives of a window: which take longer than others of their kind, and without that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.abnormal_collectives import find_abnormal_collectives
from stepscope.analysis.calls.collectives import POINT_TO_POINT, with_peers
from stepscope.analysis.communication import analyse_communication
from stepscope.analysis.graph.changes import Changes
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Int64Array


@dataclass(frozen=True)
class PointToPoint:
    """The sends and receives of a window.

    Attributes:
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


@once
def point_to_point(window: WindowView) -> PointToPoint:
    """The sends and receives, found once."""
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
    """Collectives of all kinds but sends and receives.

    That is no collective which a rank is late for, which takes too long, or which computation could
    hide: a stage has nothing to compute before its neighbour has. Rules about collectives leave
    them out, and `pipeline-bubble` is about them. The time that they need to move data is
    communication like any other, and part of `exposed-communication`.
    """
    return collectives.filter(pl.col("kind").ne_missing(POINT_TO_POINT))


_OUTLIER: dict[str, pl.DataType | type[pl.DataType]] = {
    "node": pl.Int64,
    "event": pl.Int64,
    "step": pl.Int64,  # an index
    "kind": pl.String,
    "dur_ns": pl.Int64,
    "expected_ns": pl.Int64,
    "expected_from": pl.String,
    "times": pl.Float64,
    "cause": pl.String,  # null: not known
}
_SIZE_COLUMNS = list(_OUTLIER)[3:]
_SAME_POSITION = "the same place in the other steps"


@once
def collectives(window: WindowView) -> pl.DataFrame:
    """Collectives of a window that have peers, with the columns that `with_peers` adds.

    Further columns: `node` of the graph, and `step` as an index in its steps.
    """
    everything = analyse_communication(window.trace, window.scope).collectives
    found = with_peers(without_point_to_point(everything))
    nodes = window.work["event", "node", "step"]
    return found.drop("step").join(nodes, on="event", maintain_order="left")


@once
def outliers(window: WindowView, limits: Thresholds) -> pl.DataFrame:
    """Collectives that take far longer than others of their kind and size.

    Columns: node, event, step (index), kind, dur_ns, expected_ns, expected_from, times, cause
    (null: not known).
    """
    return pl.concat([_by_size(window, limits), _by_position(window, limits)])


LATE_RANKS_FIRST = "late ranks and abnormal collectives are fixed first"
"""What a saving assumes that is counted from `undisturbed` steps."""


def undisturbed(
    window: WindowView, limits: Thresholds, waits: pl.DataFrame | None
) -> tuple[Changes, bool]:
    """The steps with each outlier as long as expected, and without known waiting for other ranks.

    Returns:
        The changed graph, and whether anything changed.
    """
    odd = outliers(window, limits)
    dur = shortened(window, odd, odd["expected_ns"])
    if waits is not None:
        rows = window.work.join(waits, on="event", maintain_order="left")
        alone = (rows["dur_ns"] - rows["wait_ns"]).clip(lower_bound=0)
        dur = np.minimum(dur, shortened(window, rows, alone))
    calm = unchanged(window.graph)
    if (dur >= calm.dur_ns).all():
        return calm, False
    return calm.shorten_work(dur), True


def waited_in(window: WindowView, waits: pl.DataFrame) -> pl.DataFrame:
    """Rows of `window.work`: collectives for which it is known how long this rank waited in them.

    Args:
        waits: How long it waited in each, columns `job.compared.WAITS`; they are added.
    """
    return window.work.join(waits, on="event", how="inner", maintain_order="left").with_columns(
        # Clocks of two machines never agree quite.
        wait_ns=pl.min_horizontal("wait_ns", "dur_ns").clip(lower_bound=0)
    )


def without_waits(window: WindowView, rows: pl.DataFrame) -> Changes:
    """The steps with every other rank there when this one comes to a collective.

    Args:
        rows: The result of `waited_in`.
    """
    alone = shortened(window, rows, rows["dur_ns"] - rows["wait_ns"])
    return unchanged(window.graph).shorten_work(alone)


def cost_of_waits(window: WindowView, waits: pl.DataFrame) -> tuple[int, tuple[int, ...]]:
    """What the steps of this rank are shorter by if it never waits for others, in ns.

    That is less than all its waits together: other work overlaps them, and a collective that
    starts early waits long without holding anything up.

    Returns:
        The mean, and the same of each step; of the whole trace where it has no steps.
    """
    graph = window.graph
    again = replay(without_waits(window, waited_in(window, waits)))
    gained = graph.step_ends_ns - again.step_ends_ns
    of_steps = np.diff(gained, prepend=0)
    # The host may not keep up with the devices, and then less is saved than they could.
    share = again.saving_ns * len(of_steps) / max(1, int(of_steps.sum()))
    return again.saving_ns, tuple(np.round(of_steps * min(share, 1.0)).astype(np.int64).tolist())


def _by_size(window: WindowView, limits: Thresholds) -> pl.DataFrame:
    report = find_abnormal_collectives(
        window.trace,
        window.scope,
        baseline=window.baseline,
        factor=limits.abnormal_collective_factor,
    )
    found = without_point_to_point(report.table)
    if found.is_empty():
        return pl.DataFrame(schema=_OUTLIER)
    return (
        window.work["event", "node", "step"]
        .join(found[["event", *_SIZE_COLUMNS]], on="event", maintain_order="left")
        .select(list(_OUTLIER))
    )


def _by_position(window: WindowView, limits: Thresholds) -> pl.DataFrame:
    """Outliers among the collectives of unknown size."""
    if analyse_communication(window.trace, window.scope).collectives.is_empty():
        return pl.DataFrame(schema=_OUTLIER)
    rows = collectives(window).filter(
        pl.col("message_bytes").is_null(), pl.col("peers") >= limits.abnormal_collective_peers
    )
    if rows.is_empty():
        return pl.DataFrame(schema=_OUTLIER)
    expected = pl.col("median_ns").round().cast(pl.Int64)
    return (
        rows.with_columns(
            expected_ns=expected,
            expected_from=pl.lit(_SAME_POSITION),
            times=pl.col("dur_ns") / pl.max_horizontal(expected, pl.lit(1_000)),
            cause=pl.lit(None, pl.String),
        )
        .filter(pl.col("times") >= limits.abnormal_collective_factor)
        .select(list(_OUTLIER))
    )


def shortened(window: WindowView, rows: pl.DataFrame, dur_ns: pl.Series) -> Int64Array:
    """Durations of all nodes, those of some rows with `node` replaced."""
    dur = window.graph.dur_ns.copy()
    dur[rows["node"].to_numpy()] = dur_ns.to_numpy().astype(np.int64)
    return dur
