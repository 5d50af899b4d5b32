"""Which stage of a pipeline computes longest, from the summaries of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median_low

from stepscope.advice.evidence.other_ranks import SlowStage
from stepscope.advice.finding import Finding
from stepscope.advice.job.accused import InWindows
from stepscope.advice.rank.summary import RankSummary

_UNEVEN, _BUBBLE = "uneven-stages", "pipeline-bubble"
_LEAST_RING = 3
"""Two stages of a pipeline have as many sends and receives as each other, too."""


def slow_stage(ranks: Sequence[RankSummary], windows: InWindows | None) -> SlowStage | None:
    """The stage that computes longest; None where fewer than two ranks send or receive."""
    computing = {
        rank.rank: ns for rank in ranks if rank.exchanges and (ns := rank.compute_ns) is not None
    }
    if len(computing) < 2:
        return None
    known = windows.stages if windows is not None else ()
    stages = [one for one in known if set(one) <= computing.keys()] or [(r,) for r in computing]
    of_stages = {one: median_low([computing[rank] for rank in one]) for one in stages}
    slowest = max(stages, key=lambda one: (of_stages[one], -one[0]))
    others = [ns for one, ns in of_stages.items() if one != slowest]
    if not others:
        return None
    counts = {rank.exchanges_per_step for rank in ranks if rank.rank in computing}
    slow = windows.slow_in_pipeline if windows is not None else None
    return SlowStage(
        slowest,
        round(of_stages[slowest]),
        round(fmean(others)),
        round(fmean(of_stages.values())),
        len(stages),
        len(computing) >= _LEAST_RING and len(counts) == 1,
        slow.gain_ns if slow is not None and slow.ranks == slowest and slow.is_stage else None,
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
