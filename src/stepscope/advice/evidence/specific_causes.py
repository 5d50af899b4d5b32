"""What makes the GPU wait comes above the findings that it waits.

`launch-bound` promises what a step without any dispatch takes, so it nearly always saves more than
a finding about some of the launches. Where one of these is most of it, it is what to change first.
Only a step record tells what dispatch takes without recording. Without one, what else the GPU waits
for comes first if it waits for that longer than for late launches: recording does not slow that.
A host that stops for the GPU cannot wait for its next batch meanwhile, so `synchronisation` may
promise as much as `input-bound`. Where both save nearly the same, that is the wait for input. The
same goes for pauses of the garbage collector: a host that runs ahead hides them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from stepscope.advice.finding import Finding

IDLE_LABEL = "GPU idle for late launches"
"""The evidence of `launch-bound`: a share of the device's time."""

# By name: the rules themselves import analyses, which a report from kept summaries does without.
_LAUNCHES = "launch-bound"
_GPU_WAITS_FOR = frozenset(
    {
        "allocator-churn",
        "cpu-bound-python",
        "exposed-communication",
        "garbage-collector",
        "input-bound",
        "pageable-copies",
        "synchronisation",
    }
)
_SYMPTOMS = {
    _LAUNCHES: (frozenset({"many-small-collectives", "unfused-optimizer"}), 0.5),
    "synchronisation": (frozenset({"input-bound", "garbage-collector"}), 0.9),
}
"""Findings, those that may be what they come from, and how much of the saving these must have."""


def specific_first(findings: Sequence[Finding], paced: Collection[int] = ()) -> tuple[Finding, ...]:
    """The findings, with those of a rank that others explain behind these.

    Args:
        findings: The findings of all ranks, the largest saving first.
        paced: The ranks whose savings are those of unrecorded steps.
    """
    order = list(range(len(findings)))
    reasons: dict[int, str] = {}
    for mine, one in enumerate(findings):
        if one.id not in _SYMPTOMS or one.saving_ns is None:
            continue
        specific, share = _SYMPTOMS[one.id]
        waits_ns = math.inf
        if one.id == _LAUNCHES and one.rank not in paced:
            waits_ns = _waits_for_launches(one)
        here = order.index(mine)
        causes = [
            place
            for place in range(here + 1, len(order))
            if (other := findings[order[place]]).rank == one.rank
            and (
                other.id in specific
                or (other.id in _GPU_WAITS_FOR and (other.saving_ns or 0) > waits_ns)
            )
            and (other.saving_ns or 0) >= share * one.saving_ns
        ]
        for place in causes:
            why = "most of that comes from it"
            if findings[order[place]].id not in specific:
                why = "the GPU waits for it longer than for late launches"
            reasons[order[place]] = f"above {one.id}, because {why}"
        if causes:
            order.insert(max(causes), order.pop(here))
    return tuple(
        replace(findings[place], placed=reasons[place]) if place in reasons else findings[place]
        for place in order
    )


def _waits_for_launches(finding: Finding) -> float:
    """How long the GPU waits for late launches in a step, by the evidence of `launch-bound`."""
    step_ns = (finding.saving_ns or 0) + (finding.predicted_step_ns or 0)
    shares = (float(one.value) for one in finding.evidence if one.label == IDLE_LABEL)
    return step_ns * next(shares, math.inf)
