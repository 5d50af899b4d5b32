"""Stragglers: which rank makes the others wait, why, and what the job would gain without it.

Definitions
    Collectives of different ranks are matched by `analysis.ranks.matching`; clocks are brought
    together by `ranks.clocks`. `analysis.blame.compared` has the definitions of arrivals and waits.
    What caused the waits is found by `blame`: waits that a rank inherited from another group are
    passed back, so that the last to arrive is not accused of somebody else's delay.
    Of a run, step records and windows are judged together, as its report does it
    (`advice.job.stragglers`): three recorded steps accuse nobody where the records of many steps
    say otherwise, and the gain is that of the many steps. Only steady steps of the windows count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from stepscope.advice.evidence.alternating_ranks import find_alternating
from stepscope.advice.job.stragglers import (
    InWindows,
    compare_windows,
    describe_late_starts,
    find_late,
    throttled_ranks,
    with_throttled,
)
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.blame.compared import Compared, compare_ranks
from stepscope.analysis.blame.lanes import JobLanes
from stepscope.analysis.blame.report import Blame
from stepscope.analysis.ranks.clocks import Clock
from stepscope.analysis.ranks.local_time import COMPUTE
from stepscope.analysis.record.metrics import SlowClock, slow_clocks
from stepscope.analysis.selection.scope import AnsweredScope
from stepscope.fleet.job import Job
from stepscope.run.figures import duration, percent
from stepscope.skew.rank_causes import FEWEST_RANKS, LATE_START, OTHER, cause_clause
from stepscope.skew.rank_skew import RankSkew, rank_skew

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "last_arrivals": pl.Int64,  # collectives that it was the last to join
    "collectives": pl.Int64,  # that it has part in and that could be matched
    "total_wait_ns": pl.Int64,  # for others
    "caused_wait_ns": pl.Int64,  # of others, summed over them
    "cause": pl.String,  # as the verdict has it, else the one with most of it; null: none
    "offset_ns": pl.Int64,  # taken off its clock; 0 where clocks are taken as recorded
    "drift_ppm": pl.Float64,  # likewise
    "clock_error_ns": pl.Int64,  # what offsets and drift are right to; null where nothing tells
    "end_spread_ns": pl.Int64,  # median distance of its ends from the collectives' median
}
"""One row per rank, the greatest caused wait first, then the least wait."""

CAUSES: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "cause": pl.String,
    "caused_wait_ns": pl.Int64,  # of other ranks, summed over them
    "gain_ns": pl.Int64,  # what a step would be shorter by; null where it was not worked out
    "is_notable": pl.Boolean,  # whether that is a fiftieth of a step or more
    "indistinguishable_from": pl.List(pl.Int64),  # ranks that a slow link might be as well
}
"""One row per rank and cause, the greatest gain first."""


@dataclass(frozen=True)
class Stragglers:
    """Who makes whom wait.

    Attributes:
        straggler: The rank that makes the others wait most for an unusual reason, be it little;
            None where nobody does.
        verdict: Who, why and what it costs, in one sentence.
        step_ns: Mean step: the time from the first arrival of any rank to the end of the last
            collective, divided by the steps. What the ranks do before and after that is no part of
            it, so of few steps it is shorter than the step that a report states.
        waits_ns: All waits of all ranks, as durations of collectives tell them.
        unexplained_ns: The part of them that nothing unusual caused.
        clock: `RECORDED` or `ALIGNED`: what was done.
        groups: One row per process group, columns `blame.report.GROUPS`.
        sets: One row per matched collective, columns `blame.compared.SETS`.
        arrivals: One row per matched collective and rank, columns `blame.compared.ARRIVALS`.
        scopes: For each rank what its part is about and what was left out of it.
        scope: The same of all ranks together.
        lanes: What the ranks did in the step with the most waiting, for a picture; None where that
            cannot be drawn.
    """

    straggler: int | None
    verdict: str
    step_ns: int | None = field(metadata={"label": "step, from the first collective to the last"})
    waits_ns: int
    unexplained_ns: int
    clock: Clock
    clock_reason: str
    matched_by: str
    ranks: pl.DataFrame
    causes: pl.DataFrame
    groups: pl.DataFrame
    sets: pl.DataFrame
    arrivals: pl.DataFrame
    scopes: dict[int, AnsweredScope] = field(metadata={"show": False})
    scope: AnsweredScope
    notes: tuple[str, ...]
    lanes: JobLanes | None = field(default=None, metadata={"show": False})


_MOST_NAMED = 8
NOBODY_LATE = "no rank makes the others wait for an unusual reason"
_NOTABLE_WAITS = 0.05
"""Of the ranks' steps: what waits must take for the verdict to say whom they are for, and what a
rank must cost to be more than slightly late."""


@dataclass(frozen=True)
class ComparedJob:
    """The windows and the step records of a job, compared: what every verb about ranks says.

    Attributes:
        recorded: How far apart the ranks come by their step records; None without any.
        late: The ranks that make the others wait; None: nobody does beyond chance.
        throttled: Ranks whose GPU's clock explains why they compute longer.
    """

    job: Job
    windows: InWindows
    recorded: RankSkew | None
    late: RankSkew | None
    throttled: Mapping[int, SlowClock]

    @classmethod
    def of(cls, job: Job) -> ComparedJob:
        """Compares the ranks of a job, as a report does it (`advice.job.stragglers`).

        Raises:
            UsageError: Fewer than two ranks, or ranks of jobs of different sizes.
        """
        steady = job.steady_steps
        steps = job.steps()
        if steady is not None:
            steps = steps.filter(pl.col("step").is_in(steady))
        waits: dict[int, dict[int, int]] = {}
        for rank, step, ns in steps.select("rank", "step", "exposed_comm_ns").iter_rows():
            waits.setdefault(rank, {})[step] = ns
        compared = compare_ranks([part.arrivals for part in job.parts], steady)
        steps_of_ranks = job.recorded_steps()
        windows = compare_windows(compared, steps_of_ranks, job.step_ns, waits)
        recorded = rank_skew(steps_of_ranks)
        late = find_late(windows, recorded, Thresholds(), steps_of_ranks)
        late = late if late is not None and late.accuses else None
        slow = slow_clocks({p.rank: p.gpu_clock for p in job.parts if p.gpu_clock is not None})
        means = steps.group_by("rank").agg(pl.col("compute_ns").mean()) if slow else steps.clear()
        compute_ns = dict(means.select("rank", "compute_ns").iter_rows())
        throttled = throttled_ranks(slow, compute_ns)
        return cls(job, windows, recorded, with_throttled(late, throttled), throttled)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        return (*self.windows.compared.all_notes, *self.job.notes)


def stragglers_of_job(job: Job) -> Stragglers:
    """Finds who makes whom wait among the ranks of a job.

    Raises:
        UsageError: Fewer than two ranks, or ranks of jobs of different sizes.
    """
    found = ComparedJob.of(job)
    compared, late = found.windows.compared, found.late
    blame = _with_throttled(found.windows.blame, found.throttled)
    notes = [
        *compared.all_notes,
        *(
            f"the GPU of rank {rank} is throttled: {one.text()}"
            for rank, one in sorted(found.throttled.items())[:_MOST_NAMED]
        ),
        *describe_late_starts(compared, blame.step_ns),
        *job.notes,
    ]
    causes = _causes(blame, late)
    shown = causes.with_columns(_words())
    return Stragglers(
        straggler=_straggler(causes, blame, late, found.recorded) if compared.fits else None,
        verdict=_verdict(causes, blame, compared, late, found.recorded),
        step_ns=round(blame.step_ns) if len(compared.matched.rank) else None,
        waits_ns=blame.waits_ns,
        unexplained_ns=blame.unexplained_ns,
        clock=compared.clock,
        clock_reason=compared.clock_reason,
        matched_by=compared.matched_by,
        ranks=_ranks(compared, blame, shown.filter("is_notable")),
        causes=shown if compared.fits else shown.clear(),
        groups=blame.groups,
        sets=compared.sets,
        arrivals=compared.arrivals,
        scopes=compared.scopes,
        scope=compared.scope.leaving_out(blame.left_out),
        notes=tuple(notes),
        lanes=found.windows.lanes(job.arrived, late),
    )


def _with_throttled(blame: Blame, slow: Mapping[int, SlowClock]) -> Blame:
    """Names the throttled GPU as the cause where a rank with one computes longer."""
    if not slow:
        return blame
    named = (
        pl.when(pl.col("rank").is_in(list(slow)) & (pl.col("cause") == COMPUTE))
        .then(pl.lit("throttled GPU"))
        .otherwise("cause")
        .alias("cause")
    )
    return replace(
        blame,
        causes=blame.causes.with_columns(named),
        ranks=blame.ranks.with_columns(named),
        stragglers=blame.stragglers.with_columns(named),
    )


def _ranks(compared: Compared, blame: Blame, notable: pl.DataFrame) -> pl.DataFrame:
    named = notable.group_by("rank").agg(named=pl.col("cause").first())
    blamed = blame.ranks.select("rank", "caused_wait_ns", most=_words())
    errors = compared.clocks.ranks.filter(pl.col("collectives") > 0).select(
        "rank", "drift_ppm", clock_error_ns="error_ns"
    )
    is_aligned = compared.clock is Clock.ALIGNED
    return (
        compared.ranks.join(blamed, on="rank", how="left")
        .join(named, on="rank", how="left")
        .join(errors, on="rank", how="left")
        .with_columns(
            pl.col("caused_wait_ns").fill_null(0),
            last_arrivals="last",
            collectives="sets",
            cause=pl.coalesce("named", "most"),
            drift_ppm=pl.col("drift_ppm") if is_aligned else pl.lit(0.0),
        )
        .sort("caused_wait_ns", "total_wait_ns", "rank", descending=[True, False, False])
        .select(pl.col(name).cast(dtype) for name, dtype in RANKS.items())
    )


def _causes(blame: Blame, late: RankSkew | None) -> pl.DataFrame:
    """Columns `CAUSES`. What ranks are late by has the gain that step records and windows give."""
    is_anyones = pl.col("peers").list.len().fill_null(0) + 1 == len(blame.ranks)
    kept = [] if late is None else late.late
    notable = blame.stragglers.filter(
        pl.col("rank").is_in(kept) | (pl.col("cause") == LATE_START) | is_anyones
    ).with_columns(is_notable=pl.lit(value=True))
    table = _all_causes(blame, notable.select("rank", "cause", "is_notable"))
    if late is None:
        return table
    others = pl.col("indistinguishable_from").list.len().fill_null(0)
    own = table.with_row_index("row").filter(
        pl.col("rank").is_in(late.late) & (others + 1 == len(late.late))
    )
    if len(late.late) > 1 and own.is_empty():
        return table  # each has its own cause, and what they bring together is in the verdict
    said = [cause_clause(one, several=len(late.late) > 1) == late.cause for one in own["cause"]]
    is_said = pl.Series(said, dtype=pl.Boolean)
    own = own.sort(is_said, "is_notable", "caused_wait_ns", descending=True)
    if own.is_empty():
        row = (late.late[0], OTHER, 0, late.saving_ns, True, None)
        return pl.concat([pl.DataFrame([row], CAUSES, orient="row"), table])
    is_main = pl.int_range(pl.len()) == own["row"][0]
    return table.with_columns(
        gain_ns=pl.when(is_main).then(pl.lit(late.saving_ns, pl.Int64)).otherwise("gain_ns"),
        is_notable=pl.col("is_notable") | is_main,
    ).sort(is_main, "gain_ns", descending=True, nulls_last=True, maintain_order=True)


def _all_causes(blame: Blame, notable: pl.DataFrame) -> pl.DataFrame:
    return (
        blame.causes.join(notable, on=["rank", "cause"], how="left")
        .with_columns(
            pl.col("is_notable").fill_null(value=False),
            indistinguishable_from="peers",
        )
        .sort(
            "gain_ns",
            "caused_wait_ns",
            "rank",
            "cause",
            descending=[True, True, False, False],
            nulls_last=True,
        )
        .select(pl.col(name).cast(dtype) for name, dtype in CAUSES.items())
    )


def _words() -> pl.Expr:
    return pl.col("cause").str.replace_all("_", " ")


def _straggler(
    causes: pl.DataFrame, blame: Blame, late: RankSkew | None, recorded: RankSkew | None
) -> int | None:
    if late is not None:
        return late.late[0] if len(late.late) == 1 else None
    notable = causes.filter("is_notable")
    if len(notable):
        worst = notable.row(0, named=True)
        return None if worst["indistinguishable_from"] else int(worst["rank"])
    most = _slightly_late(blame, recorded)
    return None if most is None else int(most["rank"])


def _slightly_late(blame: Blame, recorded: RankSkew | None) -> dict[str, Any] | None:
    """The rank with most beyond the usual where that is too little to be late; None: none."""
    most = next(blame.stragglers.iter_rows(named=True), None)
    return None if recorded is not None or most is None or most["peers"] else most


def _verdict(
    causes: pl.DataFrame,
    blame: Blame,
    compared: Compared,
    late: RankSkew | None,
    recorded: RankSkew | None,
) -> str:
    if not compared.fits:
        return "the waits do not fit the collectives, so nobody is accused"
    if not len(compared.sets):
        return "no collective could be matched, so nobody can be accused"
    if len(compared.ranks) < FEWEST_RANKS:
        return _of_two(compared, blame)
    if late is not None:
        return late.accusation()
    notable, step = causes.filter("is_notable"), duration(blame.step_ns)
    if not len(notable):
        text = NOBODY_LATE
        most = _slightly_late(blame, recorded)
        if most is not None:
            share = most["gain_ns"] / blame.step_ns
            more = f"rank {most['rank']} has more than usual ({cause_clause(most['cause'])})"
            less = f"{duration(most['gain_ns'])} less, {percent(share)} of {step}"
            text = (
                f"no rank makes the others wait for long: {more}, but without that a step would "
                f"take only {less}"
                if share < _NOTABLE_WAITS
                else "no rank makes the others wait beyond chance, as far as "
                f"{blame.steps} recorded steps tell: {more} in them, and without that they would "
                f"take {less}. Record more steps"
            )
        elif recorded is not None and len(blame.stragglers):
            text = (
                "no rank makes the others wait beyond chance: the records of "
                f"{recorded.steps} steps do not show what the {blame.steps} recorded in detail do"
            )
        alternating = find_alternating(compared.waits)
        is_notable = blame.waits_ns >= _NOTABLE_WAITS * blame.step_ns * blame.steps * len(
            compared.ranks
        )
        if alternating is not None and is_notable:
            text += f"; they take turns at being late: the others wait for {alternating.text()}"
        return text
    worst = notable.row(0, named=True)
    suspects = [worst["rank"], *(worst["indistinguishable_from"] or ())]
    cause = "transfers are slow at times, and no rank stands out as the cause"
    if len(suspects) < len(compared.ranks):
        cause = f"rank {worst['rank']} makes the others wait: {cause_clause(worst['cause'])}"
    share = worst["gain_ns"] / blame.step_ns if blame.step_ns else 0
    gain = f"{duration(worst['gain_ns'])} less, {percent(share)} of {step}"
    return f"{cause}. Without that a step would take {gain}"


def _of_two(compared: Compared, blame: Blame) -> str:
    """What is known of two ranks: who comes last, but not who is as it should be."""
    later = compared.ranks.sort("last", "rank", descending=[True, False]).row(0, named=True)
    other = compared.ranks.filter(pl.col("rank") != later["rank"]).row(0, named=True)
    wait_ns = min(other["total_wait_ns"] / max(1, blame.steps), blame.step_ns)
    return (
        "with two ranks there is no usual to compare with, so neither is accused: rank "
        f"{later['rank']} comes last to {later['last']} of {later['sets']} collectives, and rank "
        f"{other['rank']} waits {duration(round(wait_ns))} per step"
    )
