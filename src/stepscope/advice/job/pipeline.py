"""A pipeline of ranks: which stage computes longest, and what a finding on one stage is worth.

A replay of one stage keeps its sends and receives as long as they are, with the waits for other
stages in them. How these change is not known from one stage, so what its own step gets shorter by
is the most that the job gains if the finding is fixed there alone. And a step cannot be shorter
than what the GPU of any stage computes in it: the job gains no more than is left on the stage that
would be left with the least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median_low

from stepscope.advice.evidence.subject import SlowStage
from stepscope.advice.finding import Finding, with_saving, without_saving
from stepscope.advice.job.job_savings import JobGain, share_of, with_findings
from stepscope.advice.job.stragglers import InWindows
from stepscope.advice.rank.summary import RankSummary
from stepscope.advice.thresholds import Thresholds
from stepscope.run.figures import duration
from stepscope.skew.rank_causes import SLOW_STAGE
from stepscope.skew.rank_skew import RankSkew

_UNEVEN, _BUBBLE = "uneven-stages", "pipeline-bubble"
_LEAST_RING = 3
"""Two stages of a pipeline have as many sends and receives as each other, too."""
_APART = frozenset({"slow-first-steps", "stalled-step", "uneven-steps"})
"""Rules about other steps than the one shown."""
_FIXED_HERE = "; the other stages wait for this one, and do not hold it up then"


def slow_stage(
    ranks: Sequence[RankSummary], windows: InWindows | None, late: RankSkew | None
) -> SlowStage | None:
    """The stage that makes the others wait, else the one that computes longest.

    Args:
        ranks: The ranks. There is none where fewer than two of them send or receive.
    """
    computing = {
        rank.rank: ns for rank in ranks if rank.exchanges and (ns := rank.compute_ns) is not None
    }
    if len(computing) < 2:
        return None
    known = windows.stages if windows is not None else ()
    stages = [one for one in known if set(one) <= computing.keys()] or [(r,) for r in computing]
    of_stages = {one: median_low([computing[rank] for rank in one]) for one in stages}
    slowest = max(stages, key=lambda one: (of_stages[one], -one[0]))
    stragglers = None if windows is None else windows.stragglers
    if stragglers is None or stragglers.cause != SLOW_STAGE:
        late = None
    if late is not None:
        slowest = next((one for one in stages if set(one) == set(late.late)), slowest)
    others = [ns for one, ns in of_stages.items() if one != slowest]
    if not others:
        return None
    counts = {rank.exchanges_per_step for rank in ranks if rank.rank in computing}
    return SlowStage(
        slowest,
        round(of_stages[slowest]),
        round(fmean(others)),
        round(fmean(of_stages.values())),
        len(stages),
        len(computing) >= _LEAST_RING and len(counts) == 1,
        late.saving_ns if late is not None and set(late.late) == set(slowest) else None,
    )


def stage_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings with a slow stage above the bubbles of the stages that wait for it."""
    slow = next((one for one in findings if one.id == _UNEVEN and one.saving_ns), None)
    bubbles = [one for one in findings if one.id == _BUBBLE]
    if slow is None or not bubbles:
        return tuple(findings)
    others = [one for one in findings if one is not slow]
    place = others.index(bubbles[0])
    others.insert(place, replace(slow, placed="above bubbles of stages that wait for this one"))
    return tuple(others)


def limited_by_the_stages(
    ranks: Sequence[RankSummary], limits: Thresholds
) -> tuple[RankSummary, ...]:
    """The ranks of a pipeline, with no finding that saves more than the job can gain by it."""
    left = {
        rank.rank: max(0.0, 1 - rank.compute_ns / rank.step_ns)
        for rank in ranks
        if rank.compute_ns is not None and rank.step_ns
    }
    if len(left) < 2:
        return tuple(ranks)
    found: dict[str, dict[int, float]] = {}
    for rank in ranks:
        for one in rank.findings:
            share = share_of(one, _APART)
            if share is not None and rank.rank in left:
                of_rule = found.setdefault(one.id, {})
                of_rule[rank.rank] = max(share, of_rule.get(rank.rank, 0.0))
    bounds = {rule: _bound(shares, left) for rule, shares in found.items()}
    whole = {rank.rank: (rank.together_ns or 0) / max(1, rank.step_ns or 1) for rank in ranks}
    together = _bound(whole, left)
    everywhere = {rule for rule, shares in found.items() if set(shares) == set(left)}
    return tuple(_limited(rank, bounds, everywhere, together, limits) for rank in ranks)


def _bound(shares: Mapping[int, float], left: Mapping[int, float]) -> JobGain:
    """The most that the job gains if something is fixed on all ranks that have it.

    Args:
        shares: By rank with it: what the fix saves of its step, computing perhaps.
        left: By rank: what of its step its GPU does not compute.
    """
    most = {rank: share + shares.get(rank, 0.0) for rank, share in left.items()}
    rank = min(most, key=lambda one: (most[one], one))
    return JobGain(min(1.0, most[rank]), rank)


def _limited(
    rank: RankSummary,
    bounds: Mapping[str, JobGain],
    everywhere: set[str],
    together: JobGain,
    limits: Thresholds,
) -> RankSummary:
    findings = tuple(
        _with_limit(one, bounds[one.id], one.id in everywhere, limits)
        if one.id in bounds and share_of(one, _APART) is not None
        else one
        for one in rank.findings
    )
    return with_findings(rank, findings, round(together.share * (rank.step_ns or 0)))


def _with_limit(one: Finding, bound: JobGain, is_everywhere: bool, limits: Thresholds) -> Finding:
    saving_ns, most_ns = one.saving_ns or 0, int(bound.share * one.step_ns)
    own = f"rank {one.rank}'s own step is {duration(saving_ns)} shorter without it"
    if saving_ns > most_ns and bound.share < limits.saving_low:
        return without_saving(
            one, f"{own}, but the GPU of rank {bound.next_rank} computes nearly all the time"
        )
    if saving_ns <= most_ns and is_everywhere:
        return one
    assumption = one.assumption if is_everywhere else one.assumption + _FIXED_HERE
    own_ns = next_rank = None
    if saving_ns > most_ns:
        assumption += f"; {own}, but then the GPU of rank {bound.next_rank} computes all the time"
        own_ns, next_rank = saving_ns, bound.next_rank
    return replace(
        with_saving(one, min(saving_ns, most_ns), limits),
        assumption=assumption,
        own_saving_ns=own_ns,
        next_rank=next_rank,
        is_upper_bound=True,
    )
