"""The ranks of a run held against each other: who waits for whom, and what is each one's own time.

Collectives are matched between the ranks by `stepscope.analysis.stragglers`, over the steps that
all ranks recorded. What a rank waits in a collective is the latest arrival less its own; its own
time is its step less these waits, so that the rank with the most of it sets the pace.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.advice.window_view import WindowView
from stepscope.analysis.scope import Scope
from stepscope.analysis.stragglers import StragglerReport, find_stragglers
from stepscope.errors import UsageError

WAITS: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,  # the collective, in this rank's trace
    "wait_ns": pl.Int64,  # until the last rank came
    "last_rank": pl.Int64,
}

RANK_TIMES: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "wait_ns": pl.Int64,  # per step, for other ranks in collectives
    "own_ns": pl.Int64,  # mean step of the window less the wait
    "last": pl.Int64,  # collectives that it was the last to join
    "collectives": pl.Int64,  # that could be matched
}
"""One row per rank with matched collectives, by rank."""


@dataclass(frozen=True)
class RankComparison:
    """What the traces of several ranks tell together.

    Attributes:
        report: Who waits for whom.
        steps: Number of steps that it covers; 1 where the traces have none in common.
        table: Columns `RANK_TIMES`.
    """

    report: StragglerReport
    steps: int
    table: pl.DataFrame

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for; None where nobody waits."""
        waited = int(self.report.ranks["total_wait_ns"].sum())
        return self.report.straggler if waited else None

    @property
    def others_wait_ns(self) -> int:
        """What a rank other than the straggler waits per step, on average."""
        others = self.table.filter(pl.col("rank") != self.straggler)["wait_ns"]
        return round(int(others.sum()) / max(1, len(others)))

    def waits_of(self, rank: int) -> pl.DataFrame:
        """The matched collectives of a rank, columns `WAITS`."""
        return (
            self.report.arrivals.filter(pl.col("rank") == rank)
            .join(self.report.sets.select("set", "last_rank"), on="set")
            .select(pl.col(name).cast(dtype) for name, dtype in WAITS.items())
        )


def compare_ranks(views: Sequence[tuple[int, WindowView]], scope: Scope) -> RankComparison | None:
    """Hold ranks against each other; None where fewer than two communicate together.

    Args:
        views: Rank and window of each.
        scope: What was asked for; devices are each rank's own.
    """
    shared: set[int] | None = None
    for _, view in views:
        mine = set(view.graph.steps)
        shared = mine if shared is None else shared & mine
    steps = tuple(sorted(shared or ()))
    traces = [(rank, view.trace) for rank, view in views if view.has_gpu]
    if len(traces) < 2:
        return None
    try:
        report = find_stragglers(traces, Scope(steps=steps or None, events=scope.events))
    except UsageError:
        return None
    if report.sets.is_empty():
        return None
    count = max(1, len(steps))
    mean_steps = pl.DataFrame(
        [(rank, view.step_ns) for rank, view in views],
        schema={"rank": pl.Int64, "step_ns": pl.Int64},
        orient="row",
    )
    table = (
        report.ranks.filter(pl.col("sets") > 0)
        .join(mean_steps, on="rank")
        .with_columns(wait_ns=(pl.col("total_wait_ns") / count).round().cast(pl.Int64))
        .with_columns(own_ns=pl.col("step_ns") - pl.col("wait_ns"), collectives=pl.col("sets"))
        .sort("rank")
        .select(pl.col(name).cast(dtype) for name, dtype in RANK_TIMES.items())
    )
    return RankComparison(report, count, table)
