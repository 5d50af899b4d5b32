"""The collectives of several ranks, matched and on one clock: what blame and what-if stand on.

Collectives are matched by `analysis.ranks.matching`, and their process groups named by `groups`.
Clocks are brought together by `analysis.ranks.clocks`, over all process groups at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.blame.groups import find_groups
from stepscope.analysis.blame.matched import Matched, Numbers, match
from stepscope.analysis.ranks.clocks import Clock
from stepscope.analysis.ranks.matching import match_collectives
from stepscope.analysis.ranks.rank_arrivals import RankArrivals
from stepscope.analysis.ranks.rank_clocks import RankClocks
from stepscope.analysis.stragglers import StragglerReport, match_and_align


@dataclass(frozen=True)
class Compared:
    """The collectives of several ranks, matched and on one clock.

    Attributes:
        report: Arrivals, waits, and whether they fit each other.
        matched: The collectives that can be replayed.
        clocks: The ranks' clocks.
        offset_ns: Of each row of `matched`, what its clock reads too much at its start; parts that
            no collective connects are taken to begin together.
        of_host: Whether the collectives ran on CPUs.
    """

    report: StragglerReport
    matched: Matched
    clocks: RankClocks
    offset_ns: Numbers
    of_host: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        problem = self.clocks.problem
        return self.report.notes if problem is None else (*self.report.notes, problem)


def compare_ranks(
    ranks: Sequence[RankArrivals],
    steps: tuple[int, ...] | None = None,
    clock: Clock | str = Clock.AUTO,
) -> Compared:
    """Matches the collectives of several ranks, and brings their clocks together.

    Args:
        ranks: The arrivals, read `with_causes`.
        steps: Steps that count; default: those that were read.
        clock: How clocks are brought together.

    Raises:
        UsageError: Fewer than two ranks, a rank twice, or ranks of jobs of different sizes.
    """
    report, collectives, clocks = match_and_align(ranks, steps, clock)
    matched = _matched(ranks, collectives)
    offsets = np.zeros(len(matched.rank), np.int64)
    if report.clock is Clock.ALIGNED:
        offsets = _offsets(matched, clocks)
    return Compared(report, matched, clocks, offsets, any(rank.of_host for rank in ranks))


def _offsets(matched: Matched, clocks: RankClocks) -> Numbers:
    """What the clock of each row reads too much at its start.

    Nothing compares the clocks of parts that no collective connects: they are taken to begin
    together, as the ranks of one job do.
    """
    common = matched.start_ns.copy()
    for place, rank in enumerate(matched.ranks.tolist()):
        own = matched.rank == place
        common[own] = clocks.within_part(rank, matched.start_ns[own])
    begins = int(common.min()) if len(common) else 0
    for part in clocks.parts if len(clocks.parts) > 1 else ():
        inside = np.isin(matched.ranks[matched.rank], part)
        common[inside] -= common[inside].min() - begins
    return matched.start_ns - common


def match_arrivals(ranks: Sequence[RankArrivals]) -> Matched:
    """Matches the collectives of several ranks.

    Args:
        ranks: The arrivals of each.
    """
    found = pl.concat([rank.table() for rank in ranks], how="diagonal")
    return _matched(ranks, match_collectives(found).table)


def _matched(ranks: Sequence[RankArrivals], collectives: pl.DataFrame) -> Matched:
    """Matched collectives, columns of `analysis.ranks.matching.SameCollectives.table`."""
    described = {group: word for rank in ranks for group, word in rank.described}
    sizes = [rank.world_size for rank in ranks if rank.world_size is not None]
    groups = find_groups(collectives, described, sizes[0] if sizes else None)
    keys = groups.select("key", pl.col("group").alias("place"))
    rows = collectives.join(
        keys,
        left_on="group",
        right_on="key",
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    arrivals = rows.with_columns(
        group="place", number=pl.col("key").cast(pl.Int64), step=pl.col("step").cast(pl.Int64)
    ).drop("place")
    return match(arrivals, groups)
