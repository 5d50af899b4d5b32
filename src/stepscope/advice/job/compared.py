"""The ranks of a run compared: who waits for whom, and what is each one's own time.

Collectives are matched between the ranks by `analysis.blame.compared`, over the steps that
all ranks recorded. What a rank waits in a collective is the latest arrival less its own, but no
longer than its kernel where ranks may leave before all have come. While it waits, its GPU may have
other work, which continues: what the waits cost it is what its step is shorter by without them. Its
own time is its step less that, so that the rank with the most of it sets the pace.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import polars as pl

from stepscope.advice.evidence.alternating_ranks import AlternatingRanks, find_alternating
from stepscope.advice.job.stragglers import InWindows, compare_windows
from stepscope.advice.rank.summary import ComparedRank, RankSummary, Waits
from stepscope.errors import UsageError
from stepscope.skew.rank_skew import RankSteps, rank_steps

if TYPE_CHECKING:
    from stepscope.analysis.blame.compared import Compared
    from stepscope.analysis.blame.gains import OnTime

WAITS: dict[str, pl.DataType | type[pl.DataType]] = {
    "event": pl.Int64,  # the collective, in this rank's trace
    "wait_ns": pl.Int64,  # until the last rank came
    "last_rank": pl.Int64,
}

RANK_TIMES: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "wait_ns": pl.Int64,  # per step, what waiting for other ranks in collectives costs it
    "own_ns": pl.Int64,  # mean step of the window less the wait
    "last": pl.Int64,  # collectives that it was the last to join
    "collectives": pl.Int64,  # that could be matched
}
"""One row per rank with matched collectives, by rank."""

_NOTABLE_COST = 0.05
"""Of a step: what waiting must cost every rank for ranks that are late in turn within a step."""


@dataclass(frozen=True)
class RankMatch:
    """The collectives of several ranks, matched over the steady steps that all windows have.

    Attributes:
        compared: Who waits for whom, with sends and receives.
        steps: The steps; empty where the traces have none in common.
    """

    compared: Compared
    steps: tuple[int, ...]
    compared_ranks: tuple[ComparedRank, ...]

    @property
    def knows_waits(self) -> bool:
        """Whether it is known how long ranks wait in their collectives."""
        report = self.report
        return not self.compared.of_host and report.fits and not report.sets.is_empty()

    @cached_property
    def report(self) -> Compared:
        """Who waits for whom, without sends and receives."""
        return self._report_of(self.steps) if self.compared.has_exchanges else self.compared

    def _report_of(self, steps: tuple[int, ...]) -> Compared:
        from stepscope.analysis.blame.compared import compare_ranks

        arrivals = [one.arrivals for one in self.compared_ranks if one.arrivals is not None]
        return compare_ranks(arrivals, steps or None, point_to_point=False)

    def waits_of(self, rank: int) -> Waits | None:
        """What a rank waited in its matched collectives, columns `WAITS`; None without any."""
        windows = {one.rank: one.window for one in self.compared_ranks}
        window = windows.get(rank)
        if window is None or not self.knows_waits:
            return None
        others = (one.parts_of_rounds for one in self.compared_ranks if one.rank != rank)
        apart = tuple(sorted({step for steps in others for step in steps}))
        return Waits(window, self._waits.get((rank,), pl.DataFrame(schema=WAITS)), apart)

    @cached_property
    def _waits(self) -> dict[tuple[object, ...], pl.DataFrame]:
        """Of each rank, columns `WAITS`, over all steps, those too that are like no others."""
        in_all = set.intersection(*(set(one.all_steps) for one in self.compared_ranks))
        is_same = in_all == set(self.steps)
        whole = self.report if is_same else self._report_of(tuple(sorted(in_all)))
        waits = whole.waits.select(
            "rank", *(pl.col(name).cast(dtype) for name, dtype in WAITS.items())
        )
        return waits.partition_by("rank", as_dict=True, include_key=False)


@dataclass(frozen=True)
class RankComparison:
    """What the traces of several ranks tell together.

    Attributes:
        table: Columns `RANK_TIMES`.
        step_costs_ns: By rank of the table and step that all have: what waiting costs it then.
            Empty where that is unknown.
        windows: Which ranks make the others wait, and the replay of all.
    """

    match: RankMatch
    table: pl.DataFrame
    step_costs_ns: Mapping[int, Mapping[int, int]]
    windows: InWindows

    @property
    def report(self) -> Compared:
        """Who waits for whom, without sends and receives."""
        return self.match.report

    @property
    def steps(self) -> int:
        """Number of steps that it covers; 1 where the traces have none in common."""
        return max(1, len(self.match.steps))

    @property
    def straggler(self) -> int | None:
        """The rank that the others wait for; None where nobody waits."""
        waited = int(self.report.ranks["total_wait_ns"].sum())
        return self.report.straggler if waited else None

    @cached_property
    def waits_for_ranks(self) -> dict[int, int]:
        """By rank: how long others waited for it, in all collectives that it joined last."""
        waits = self.report.waits.group_by("last_rank").agg(pl.col("wait_ns").sum())
        return dict(waits.iter_rows())

    @cached_property
    def waits_in_collectives_ns(self) -> dict[int, int]:
        """By rank: how long it waits for others in the collectives of a step."""
        rows = self.report.ranks.filter(pl.col("sets") > 0).select("rank", "total_wait_ns")
        return {rank: round(ns / self.steps) for rank, ns in rows.iter_rows()}

    @cached_property
    def step_waits_ns(self) -> dict[int, dict[int, int]]:
        """By rank and step: how long it waits for others in its collectives."""
        sums = (
            self.report.waits.drop_nulls("step")
            .group_by("rank", "step")
            .agg(pl.col("wait_ns").sum())
        )
        found: dict[int, dict[int, int]] = {}
        for rank, step, wait_ns in sums.iter_rows():
            found.setdefault(rank, {})[step] = wait_ns
        return found

    @property
    def late(self) -> tuple[int, ...]:
        """The ranks that make the others wait; where nobody is accused of it, the straggler."""
        straggler, windows = self.straggler, self.windows
        if windows.is_comparable and windows.stragglers is not None:
            return windows.stragglers.ranks
        return () if straggler is None else (straggler,)

    @property
    def share_for_late(self) -> float:
        """How much of all waiting in collectives is for the late ranks."""
        waits, total_ns = self.waits_for_ranks, sum(self.waits_for_ranks.values())
        return sum(waits.get(rank, 0) / total_ns for rank in self.late) if total_ns else 0.0

    @cached_property
    def alternating(self) -> AlternatingRanks | None:
        """The ranks that are late in turn; None where one is late, or several in the same steps."""
        return find_alternating(self.report.waits)

    def gain_of_fixing(self, late: Collection[int]) -> OnTime | None:
        """How much shorter a step gets if some ranks come no later than the others.

        None where the collectives cannot be replayed, or there are no others.
        """
        windows = self.windows
        return windows.blame.gains.on_time(late) if windows.is_comparable else None

    @cached_property
    def is_uneven(self) -> bool:
        """Whether ranks are late in turn within each step, so that waiting costs every rank much.

        Each has less to do than others before some collectives and more before others: the step is
        shorter by what waiting costs the one that it costs least if all came together each time.
        """
        if self.alternating is not None or len(self.table) < 2 or not self.step_costs_ns:
            return False
        step_ns = int((self.table["wait_ns"] + self.table["own_ns"]).sum()) / len(self.table)
        least_ns = self.least_cost_ns
        fixed = self.gain_of_fixing(self.late)
        is_more = fixed is None or least_ns > fixed.gain_ns
        return is_more and least_ns >= _NOTABLE_COST * step_ns

    @cached_property
    def least_cost_ns(self) -> int:
        """What waiting costs in a step the rank that it costs least in it, on average."""
        steps = self._costs_of_steps
        if not steps:
            return int(self.table["wait_ns"].min() or 0)  # type: ignore[arg-type]
        return round(sum(min(costs.values()) for costs in steps) / len(steps))

    @cached_property
    def cost_of_alternating_ns(self) -> int | None:
        """What waiting for the last rank costs the others in a step, on average.

        None where it is unknown what waiting costs a rank in a step.
        """
        steps = self._costs_of_steps
        if not steps or len(self.table) < 2:
            return None
        others = [sum(costs.values()) - min(costs.values()) for costs in steps]
        return max(0, round(sum(others) / len(steps) / (len(self.table) - 1)))

    @cached_property
    def _costs_of_steps(self) -> list[dict[int, int]]:
        of_ranks = self.step_costs_ns
        steps = next(iter(of_ranks.values()), {})
        return [{rank: costs[step] for rank, costs in of_ranks.items()} for step in steps]

    @property
    def wait_ns(self) -> int:
        """What waiting costs a rank per step, on average over all."""
        return round(int(self.table["wait_ns"].sum()) / max(1, len(self.table)))

    @property
    def others_wait_ns(self) -> int:
        """What waiting costs a rank other than the late ones per step, on average.

        Where nobody waits, nobody is late, and these are all ranks.
        """
        others = self.table.filter(~pl.col("rank").is_in(self.late))["wait_ns"]
        return round(int(others.sum()) / max(1, len(others)))


def compare_summaries(
    match: RankMatch, ranks: Sequence[RankSummary], records: Sequence[RankSteps]
) -> tuple[InWindows, RankComparison | None]:
    """What the ranks' windows show over the steady steps that all have, and what waits cost.

    Where it is unknown what waiting costs a rank, all its waits count. If it is known of all in
    each step, only steps that all have count: how long a rank waits in others is not known.

    Args:
        records: Their step records; none where these are not to be used.

    Returns:
        The comparison is None where it is not known how long ranks wait.
    """
    with_arrivals = [
        rank for rank in ranks if rank.rank in {one.rank for one in match.compared_ranks}
    ]
    means = {r.rank: r.window_step_ns for r in ranks if r.window_step_ns is not None}
    mean_ns = [means[rank.rank] for rank in with_arrivals if rank.rank in means]
    table = pl.DataFrame(schema=RANK_TIMES)
    step_costs_ns: Mapping[int, Mapping[int, int]] = {}
    waits: dict[int, Mapping[int, int]] = {}
    if match.knows_waits:
        costs = {
            r.rank: dict(zip(r.window_steps or (0,), r.costs_of_waits_ns, strict=True))
            for r in ranks
            if r.costs_of_waits_ns is not None
        }
        table = _rank_times(match, ranks, means, costs)
        waits = dict(step_costs_ns := _of_all(costs, table["rank"].to_list()))
    else:
        for rank in with_arrivals:
            rows = None if rank.host is None else rank.host.steps
            if rows is not None and "communication_ns" in rows.columns:
                own = dict(zip(rows["step"], rows["communication_ns"], strict=True))
                waits[rank.rank] = {step: own[step] for step in match.steps if step in own}
    windows = compare_windows(
        match.compared,
        records,
        round(statistics.fmean(mean_ns)) if mean_ns else 0,
        waits if len(waits) == len(with_arrivals) else None,
    )
    if not match.knows_waits:
        return windows, None
    return windows, RankComparison(match, table, step_costs_ns, windows)


def _rank_times(
    match: RankMatch,
    ranks: Sequence[RankSummary],
    step_ns: Mapping[int, int],
    step_costs_ns: Mapping[int, Mapping[int, int]],
) -> pl.DataFrame:
    with_arrivals = match.report.ranks.filter(pl.col("sets") > 0)
    cost_ns = {r.rank: r.cost_of_waits_ns for r in ranks if r.cost_of_waits_ns is not None}
    for rank, of_rank in _of_all(step_costs_ns, with_arrivals["rank"].sort().to_list()).items():
        if of_rank:
            cost_ns[rank] = round(sum(of_rank.values()) / len(of_rank))
    known = pl.DataFrame(
        [(rank, ns, cost_ns.get(rank)) for rank, ns in step_ns.items()],
        schema={"rank": pl.Int64, "step_ns": pl.Int64, "cost_ns": pl.Int64},
        orient="row",
    )
    mean_ns = (pl.col("total_wait_ns") / max(1, len(match.steps))).round().cast(pl.Int64)
    return (
        with_arrivals.join(known, on="rank")
        .with_columns(wait_ns=pl.coalesce("cost_ns", mean_ns))
        .with_columns(own_ns=pl.col("step_ns") - pl.col("wait_ns"), collectives=pl.col("sets"))
        .sort("rank")
        .select(pl.col(name).cast(dtype) for name, dtype in RANK_TIMES.items())
    )


def _of_all(
    step_costs_ns: Mapping[int, Mapping[int, int]], ranks: Sequence[int]
) -> dict[int, dict[int, int]]:
    """The costs of the steps that all ranks have; empty where those of a rank are unknown."""
    if not ranks or not all(rank in step_costs_ns for rank in ranks):
        return {}
    steps = set(step_costs_ns[ranks[0]]).intersection(*(step_costs_ns[rank] for rank in ranks))
    return {rank: {step: step_costs_ns[rank][step] for step in sorted(steps)} for rank in ranks}


def match_ranks(compared_ranks: Sequence[ComparedRank]) -> tuple[RankMatch | None, tuple[str, ...]]:
    """Match the collectives of ranks over the steady steps that all their windows have.

    Returns:
        The match, None where fewer than two communicate; and why it was refused, or tells no waits,
        where traces do not go together.
    """
    with_arrivals = tuple(one for one in compared_ranks if one.arrivals is not None)
    if len(with_arrivals) < 2:
        return None, ()
    from stepscope.analysis.blame.compared import compare_ranks

    steps = tuple(sorted(set.intersection(*(set(one.window_steps) for one in with_arrivals))))
    arrivals = [one.arrivals for one in with_arrivals if one.arrivals is not None]
    try:
        found = RankMatch(compare_ranks(arrivals, steps or None), steps, with_arrivals)
    except UsageError as error:
        return None, (f"the ranks are not compared: {error}",)
    report = found.report
    if found.compared.of_host or report.fits or report.sets.is_empty():
        return found, ()
    return found, tuple(f"the ranks are not compared: {note}" for note in report.notes)


def recorded_steps(compared_ranks: Sequence[ComparedRank]) -> tuple[RankSteps, ...]:
    """The step records of ranks."""
    return rank_steps(
        [(m.manifest, m.steps.records()) for m in compared_ranks if m.manifest is not None]
    )
