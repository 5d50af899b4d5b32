"""What makes the GPU wait comes above the findings that it waits.

`launch-bound` promises what a step without any dispatch takes, so it nearly always saves more than
a finding about some of the launches. Where one of these is most of it, it is what to change first.
A host that stops for the GPU cannot wait for its next batch meanwhile, so `synchronisation` may
promise as much as `input-bound`. Where both save nearly the same, that is the wait for input. The
same goes for pauses of the garbage collector: a host that runs ahead hides them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.advice.finding import Finding

# By name: the rules themselves import analyses, which a report from kept summaries does without.
_SYMPTOMS = {
    "launch-bound": (frozenset({"many-small-collectives", "unfused-optimizer"}), 0.5),
    "synchronisation": (frozenset({"input-bound", "garbage-collector"}), 0.9),
}
"""Findings, those that may be what they come from, and how much of the saving these must have."""


def specific_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, with those of a rank that others explain behind these.

    Args:
        findings: The findings of all ranks, the largest saving first.
    """
    order = list(range(len(findings)))
    reasons: dict[int, str] = {}
    for mine, one in enumerate(findings):
        if one.id not in _SYMPTOMS or one.saving_ns is None:
            continue
        specific, share = _SYMPTOMS[one.id]
        here = order.index(mine)
        causes = [
            place
            for place in range(here + 1, len(order))
            if (other := findings[order[place]]).rank == one.rank
            and other.id in specific
            and (other.saving_ns or 0) >= share * one.saving_ns
        ]
        for place in causes:
            reasons[order[place]] = f"above {one.id}, because most of that comes from it"
        if causes:
            order.insert(max(causes), order.pop(here))
    return tuple(
        replace(findings[place], placed=reasons[place]) if place in reasons else findings[place]
        for place in order
    )
