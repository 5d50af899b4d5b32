"""What making the rank that others wait for quicker is worth: no more than the next rank allows.

How long a rank waits for another is known from the arrivals of all, and what its own step would be
without that from a replay. But ranks meet in every step, so the job's step gets shorter only until
it is the next rank that sets the pace: by what waiting costs the rank that it costs least.

Where ranks are late in turn, a rank does not wait in the steps in which it is late itself, but the
job loses as much in these: in each step what the other ranks wait, on average, for the late one.

Where ranks are late in turn within a step, each waits in it, and the step would be shorter by what
waiting costs the rank that it costs least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.advice.evidence.alternating_ranks import (
    ALTERNATING,
    ALTERNATING_WITHIN_STEP,
    for_ranks,
)
from stepscope.advice.finding import Finding, with_saving, without_saving
from stepscope.advice.job.compared import RankComparison
from stepscope.advice.rank.summary import RankSummary
from stepscope.advice.thresholds import Thresholds
from stepscope.run.figures import duration, rank_names

if TYPE_CHECKING:
    from stepscope.analysis.blame.gains import OnTime

_RANK_WAITING = "rank-waiting"
_LESS_LATE = "{} comes less late without the recording, which slows its host"
_NOTABLY_LESS = 0.95
"""Up to which part of a saving a lower limit is worth a word."""


def limited_by_the_next(
    ranks: Sequence[RankSummary],
    between: RankComparison | None,
    limits: Thresholds,
) -> tuple[RankSummary, ...]:
    """The ranks, with no finding about waiting that saves more than fixing its cause brings."""
    if between is None:
        return tuple(ranks)
    return tuple(_limited(rank, between, limits) for rank in ranks)


def _limited(rank: RankSummary, between: RankComparison, limits: Thresholds) -> RankSummary:
    rank = replace(rank, findings=tuple(_of_all_late(one, between.late) for one in rank.findings))
    if between.alternating is not None:
        findings = tuple(_of_all_alternating(one, rank, between, limits) for one in rank.findings)
    elif between.is_uneven:
        findings = tuple(_of_each_collective(one, rank, between, limits) for one in rank.findings)
    else:
        findings = tuple(_with_limit(one, rank, between, limits) for one in rank.findings)
    if findings == rank.findings:
        return rank
    together_ns = rank.together_ns
    if all(one.saving_ns is None for one in findings):
        return replace(rank, findings=findings, together_ns=None, together_own_ns=None)
    if together_ns is not None and between.alternating is not None:
        more_ns = sum(
            max(0, (new.saving_ns or 0) - (old.saving_ns or 0))
            for new, old in zip(findings, rank.findings, strict=True)
        )
        all_ns = sum(one.saving_ns or 0 for one in findings)
        together_ns = min(together_ns + more_ns, all_ns, rank.step_ns or all_ns)
        return replace(rank, findings=findings, together_ns=together_ns)
    if together_ns is not None and between.is_uneven:
        savings = [one.saving_ns for one in findings if one.saving_ns is not None]
        return replace(rank, findings=findings, together_ns=min(together_ns, sum(savings)))
    if together_ns is not None:
        about_others = [one.saving_ns or 0 for one in findings if one.waits_for is not None]
        own_ns = (rank.together_own_ns or 0) + max(about_others)
        least_ns = max((one.saving_ns or 0 for one in findings), default=0)
        together_ns = max(least_ns, min(together_ns, own_ns))
    return replace(rank, findings=findings, together_ns=together_ns)


def _of_all_late(one: Finding, late: Sequence[int]) -> Finding:
    """A finding about waiting for one of several late ranks, which names them all.

    Which of them comes last is a matter of chance.
    """
    if one.id != _RANK_WAITING or one.waits_for is None:
        return one
    if len(late) < 2 or one.waits_for not in late:
        return one
    about = for_ranks(late)
    return replace(one, title=about.title, advice=about.advice)


def _of_all_alternating(
    one: Finding, rank: RankSummary, between: RankComparison, limits: Thresholds
) -> Finding:
    """A finding that ranks are late in turn, with what the job loses in its rank's turns."""
    cost_ns = between.cost_of_alternating_ns
    if one.id != _RANK_WAITING or one.saving_ns is None or not cost_ns:
        return one
    saving_ns = min(_of_its_step(cost_ns, one, rank), one.step_ns)
    return replace(
        with_saving(one, saving_ns, limits),
        title=ALTERNATING.title,
        advice=ALTERNATING.advice,
        waits_for=None,
        assumption="in each step, the last rank comes when the others do, on average",
    )


def _of_each_collective(
    one: Finding, rank: RankSummary, between: RankComparison, limits: Thresholds
) -> Finding:
    """A finding about waiting, with what every rank loses by it."""
    if one.id != _RANK_WAITING or one.saving_ns is None:
        return one
    saving_ns = min(one.saving_ns, _of_its_step(between.least_cost_ns, one, rank))
    return replace(
        with_saving(one, saving_ns, limits),
        title=ALTERNATING_WITHIN_STEP.title,
        advice=ALTERNATING_WITHIN_STEP.advice,
        waits_for=None,
        assumption="each rank has as much to do in a step as now, and all come to each collective "
        "together",
    )


def _with_limit(
    one: Finding, rank: RankSummary, between: RankComparison, limits: Thresholds
) -> Finding:
    """A finding, with what fixing the rank that it names brings, where that is notably less."""
    if one.waits_for is None or one.saving_ns is None:
        return one
    # Those that are late together with it come earlier, too.
    ranks = between.late if one.waits_for in between.late else (one.waits_for,)
    fixed, named = between.gain_of_fixing(ranks), rank_names(ranks)
    if fixed is None:
        return one
    gain_ns = _of_its_step(fixed.gain_ns, one, rank)
    share = between.windows.unrecorded_share(ranks, fixed.gain_ns)
    if share * fixed.gain_ns < _NOTABLY_LESS * min(gain_ns, one.saving_ns):
        less = with_saving(one, round(share * fixed.gain_ns), limits)
        return replace(less, assumption=f"{one.assumption}; {_LESS_LATE.format(named)}")
    if gain_ns > _NOTABLY_LESS * one.saving_ns:
        return one
    if gain_ns / max(1, one.step_ns) < limits.saving_low:
        return _saves_nothing(one, ranks, fixed)
    come = "come" if len(ranks) > 1 else "comes"
    return replace(
        with_saving(one, gain_ns, limits),
        assumption=f"{named} {come} no later than the next, rank {fixed.next_rank}, which "
        f"then limits the step; {duration(one.saving_ns)} only if {one.assumption}",
        is_upper_bound=False,
    )


def _of_its_step(window_ns: float, one: Finding, rank: RankSummary) -> int:
    """A time in a step of the window, as a time in the step that a finding saves from.

    A step of the record may take another time than one of the window, which was replayed.
    """
    return round(window_ns * one.step_ns / max(1, rank.window_step_ns or one.step_ns))


def _saves_nothing(one: Finding, ranks: Sequence[int], fixed: OnTime) -> Finding:
    """A finding that says something of the job, but nothing that fixing its cause would bring."""
    named = rank_names(ranks)
    then = f"{one.advice[:1].lower()}{one.advice[1:]}"
    reason = (
        f"fixing {named} alone brings little, because rank {fixed.next_rank} takes nearly as "
        "long by itself"
    )
    if fixed.is_passing:
        hosts = "their hosts were" if len(ranks) > 1 else "its host was"
        reason = (
            f"{named} came late only because {hosts} less far ahead when the window began: in "
            "the steady state that costs little"
        )
    return replace(
        without_saving(one, reason),
        advice="Begin with what slows all ranks (the other findings; `stepscope show stragglers` "
        f"on all ranks' traces replays what each cause costs). Then: {then}",
    )
