"""The collectives of several ranks, matched and on one clock: what blame and what-if stand on.

Definitions
    Collectives of different ranks are matched by `ranks.matching`, their process groups named by
    `groups`, and clocks brought together by `ranks.clocks`, over all process groups at once.
    A rank arrives when its kernel starts. Its wait is the latest arrival of the set less its own.
    The straggler is the rank with the least total wait: the others wait for it. Where ranks have
    part in different numbers of sets, the mean wait per set decides instead.
    Transfer time of a set: the shortest duration of its kernels, of which only the last to arrive
    has waited for nobody.
    The comparison gives the offsets of the clocks and how far ends still spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from stepscope.analysis.blame.groups import find_groups
from stepscope.analysis.blame.matched import Matched, Numbers, match
from stepscope.analysis.calls.collectives import POINT_TO_POINT, algorithm_bandwidth, bus_factor
from stepscope.analysis.ranks.clocks import (
    Clock,
    RankClocks,
    choose_offsets,
    on_one_clock,
    solve_rank_clocks,
    waits_fit,
)
from stepscope.analysis.ranks.matching import match_collectives
from stepscope.analysis.ranks.rank_arrivals import RankArrivals, arrivals_of
from stepscope.analysis.selection.scope import AnsweredScope
from stepscope.errors import UsageError

SETS: dict[str, pl.DataType | type[pl.DataType]] = {
    "set": pl.Int64,  # row number, in order of the first arrival
    "group": pl.String,
    "step": pl.Int32,
    "number": pl.Int64,  # in its group, as matched
    "kind": pl.String,
    "message_bytes": pl.Int64,
    "ranks": pl.Int64,
    "first_rank": pl.Int64,
    "last_rank": pl.Int64,
    "spread_ns": pl.Int64,  # last arrival less first arrival
    "total_wait_ns": pl.Int64,  # of all ranks
    "transfer_ns": pl.Int64,  # shortest duration
    "algorithm_bandwidth_gb_per_s": pl.Float64,  # of the transfer time
    "bus_bandwidth_gb_per_s": pl.Float64,
}
"""One row per matched collective."""

ARRIVALS: dict[str, pl.DataType | type[pl.DataType]] = {
    "set": pl.Int64,
    "rank": pl.Int64,
    "event": pl.Int64,  # in the rank's trace
    "arrival_ns": pl.Int64,  # since the first arrival of any rank, on the common clock
    "dur_ns": pl.Int64,
    "wait_ns": pl.Int64,
}
"""One row per matched collective and rank."""

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "sets": pl.Int64,  # matched collectives that it has part in
    "total_wait_ns": pl.Int64,
    "mean_wait_ns": pl.Int64,
    "last": pl.Int64,  # times that others waited and it came when or after all others had
    "offset_ns": pl.Int64,  # of its clock, taken off; 0 where clocks are taken as recorded
    "end_spread_ns": pl.Int64,  # median distance of its ends from the sets' median, after alignment
}
"""One row per rank, the least total wait first."""


_NOTHING = "no collective could be matched between the ranks, so there is nothing to compare"
_DO_NOT_FIT = (
    "waits are longer than the collectives that were waited in: these are no ranks of one run, or "
    "their clocks cannot be brought together; no straggler is named"
)


def check_ranks(numbers: Sequence[int]) -> None:
    """Refuse what cannot be compared."""
    if len(numbers) < 2:
        raise UsageError("ranks are compared with each other: give the traces of two or more")
    if len(set(numbers)) != len(numbers):
        twice = next(rank for rank in numbers if numbers.count(rank) > 1)
        raise UsageError(f"rank {twice} is given twice: name the ranks apart")


@dataclass(frozen=True)
class Compared:
    """Who waits for whom: the collectives of several ranks, matched and on one clock.

    Attributes:
        straggler: The rank with the least total wait; None where nothing could be matched, or
            nothing fits.
        clock: `RECORDED` or `ALIGNED`: what was done.
        scopes: For each rank what its part is about and what was left out of it.
        fits: Whether waits can be what they seem: a rank that waits in a collective is in it.
        of_host: Whether the collectives ran on CPUs.
        read: The arrivals of each rank, over all steps that were read.
        collectives: Those that are matched, each rank's on its own clock.
    """

    straggler: int | None
    ranks: pl.DataFrame
    sets: pl.DataFrame
    arrivals: pl.DataFrame
    clock: Clock
    clock_reason: str
    clocks: RankClocks
    matched_by: str
    scopes: dict[int, AnsweredScope]
    scope: AnsweredScope
    notes: tuple[str, ...]
    fits: bool
    of_host: bool
    has_exchanges: bool
    read: tuple[RankArrivals, ...]
    collectives: pl.DataFrame

    @cached_property
    def matched(self) -> Matched:
        """The collectives that can be replayed."""
        return _matched(self.read, self.collectives)

    @cached_property
    def offset_ns(self) -> Numbers:
        """Of each row of `matched`, what its clock reads too much at its start.

        Nothing compares the clocks of parts that no collective connects: they are taken to begin
        together, as the ranks of one job do.
        """
        matched, clocks = self.matched, self.clocks
        ranks, start_ns = matched.ranks[matched.rank], matched.start_ns
        if self.clock is not Clock.ALIGNED or not len(start_ns):
            return np.zeros_like(start_ns)
        table = pl.DataFrame({"rank": ranks, "start_ns": start_ns})
        known = table.join(clocks.ranks, on="rank", how="left", maintain_order="left")
        common = known.select(clocks.corrected("start_ns")).to_series().to_numpy().copy()
        begins = common.min()
        for part in clocks.parts if len(clocks.parts) > 1 else ():
            inside = np.isin(ranks, part)
            common[inside] -= common[inside].min() - begins
        offsets: Numbers = start_ns - common
        return offsets

    @cached_property
    def waits(self) -> pl.DataFrame:
        """The arrivals, with the step and the last rank of their sets."""
        of_sets = self.sets.select("set", "step", "last_rank")
        return self.arrivals.join(of_sets, on="set", maintain_order="left")

    @property
    def all_notes(self) -> tuple[str, ...]:
        """What a reader must know, also of the clocks."""
        problem = self.clocks.problem
        return self.notes if problem is None else (*self.notes, problem)


def compare_ranks(
    ranks: Sequence[RankArrivals],
    steps: tuple[int, ...] | None = None,
    *,
    point_to_point: bool = True,
) -> Compared:
    """Matches the collectives of several ranks, and brings their clocks together.

    Args:
        ranks: The arrivals, at least two; `matched` takes those that were read `with_causes`.
        steps: Steps that count; default: those that were read.
        point_to_point: Whether sends and receives count. The stages of a pipeline wait in them for
            each other by design.

    Raises:
        UsageError: Fewer than two ranks, a rank twice, or ranks of jobs of different sizes.
    """
    numbers = [rank.rank for rank in ranks]
    check_ranks(numbers)
    _check_one_job(ranks)
    found = arrivals_of(ranks, steps)
    is_exchange = pl.col("kind").eq_missing(POINT_TO_POINT)
    if not point_to_point:
        found = found.filter(~is_exchange)
    matched, matched_by, left_out = match_collectives(found)
    scopes = {
        rank.rank: rank.answered(steps).leaving_out(
            {
                str(reason): int(count)
                for _, reason, count in left_out.filter(rank=rank.rank).iter_rows()
            }
        )
        for rank in ranks
    }
    of_host = any(rank.of_host for rank in ranks)
    clocks = solve_rank_clocks(matched)
    offsets, used, reason = choose_offsets(clocks, numbers, on_hosts=of_host)
    common = on_one_clock(matched, offsets, clocks)
    fits = waits_fit(common)
    table = _ranks(common, offsets)
    sets, arrivals = _sets(common)
    notes = [_NOTHING] if sets.is_empty() else []
    return Compared(
        straggler=_straggler(table) if fits else None,
        ranks=table,
        sets=sets,
        arrivals=arrivals,
        clock=used,
        clock_reason=reason,
        clocks=clocks,
        matched_by=matched_by,
        scopes=scopes,
        scope=AnsweredScope.together(list(scopes.values())),
        notes=tuple(notes if fits else [_DO_NOT_FIT]),
        fits=fits,
        of_host=of_host,
        has_exchanges=not found.filter(is_exchange).is_empty(),
        read=tuple(ranks),
        collectives=matched,
    )


def match_arrivals(ranks: Sequence[RankArrivals]) -> Matched:
    """Matches the collectives of several ranks, whose clocks do not matter."""
    return _matched(ranks, match_collectives(arrivals_of(ranks))[0])


def _matched(ranks: Sequence[RankArrivals], collectives: pl.DataFrame) -> Matched:
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


def _check_one_job(ranks: Sequence[RankArrivals]) -> None:
    sizes: dict[int, int] = {}
    for rank in ranks:
        if rank.world_size is not None:
            sizes.setdefault(rank.world_size, rank.rank)
    if len(sizes) > 1:
        listed = ", ".join(f"rank {rank} is one of {size}" for size, rank in sorted(sizes.items()))
        raise UsageError(f"these traces are no ranks of one run: {listed}")


def _ranks(table: pl.DataFrame, offsets: pl.DataFrame) -> pl.DataFrame:
    waited = pl.col("wait_ns").max().over("key") > 0
    # Of ranks that come last at the same moment, each is the last; where all do, none is.
    latest = table.filter(waited & (pl.col("wait_ns") == 0))
    last = latest["rank"].value_counts(name="last")
    waits = table.group_by("rank").agg(
        sets=pl.len(),
        total_wait_ns=pl.col("wait_ns").sum(),
        mean_wait_ns=pl.col("wait_ns").mean().round(),
        end_spread_ns=pl.col("spread").median().round(),
    )
    return (
        offsets.join(waits, on="rank", how="left")
        .join(last, on="rank", how="left")
        .with_columns(pl.col("sets", "total_wait_ns", "last").fill_null(0))
        .sort(pl.col("total_wait_ns"), "rank")
        .select(pl.col(column).cast(dtype) for column, dtype in RANKS.items())
    )


def _straggler(ranks: pl.DataFrame) -> int | None:
    taking_part = ranks.filter(pl.col("sets") > 0)
    if taking_part.is_empty():
        return None
    by = "total_wait_ns" if taking_part["sets"].n_unique() == 1 else "mean_wait_ns"
    return int(taking_part.sort(by, "rank")["rank"][0])


def _sets(aligned: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    by_arrival = aligned.sort("key", "arrival_ns", "rank")
    sets = by_arrival.group_by("key", maintain_order=True).agg(
        pl.col("group", "step", "number", "kind", "group_size").first(),
        message_bytes=pl.col("message_bytes").max(),
        ranks=pl.len(),
        first_rank=pl.col("rank").first(),
        last_rank=pl.col("rank").last(),
        spread_ns=pl.col("wait_ns").max(),
        total_wait_ns=pl.col("wait_ns").sum(),
        transfer_ns=pl.col("dur_ns").min(),
    )
    transfer_ns = pl.col("transfer_ns")
    sets = sets.with_row_index("set").with_columns(
        algorithm_bandwidth_gb_per_s=algorithm_bandwidth(transfer_ns),
        bus_bandwidth_gb_per_s=algorithm_bandwidth(transfer_ns) * bus_factor(),
    )
    arrivals = aligned.join(sets.select("key", "set"), on="key").sort("set", "rank")
    return (
        sets.select(pl.col(column).cast(dtype) for column, dtype in SETS.items()),
        arrivals.select(pl.col(column).cast(dtype) for column, dtype in ARRIVALS.items()),
    )
