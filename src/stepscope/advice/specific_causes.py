"""What makes launches late comes above the finding that they are late.

`launch-bound` promises what a step without any dispatch takes, so it nearly always saves more than
a finding about some of the launches. Where one of these is most of it, it is what to change first.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.advice.finding import Finding

# By name: the rules themselves import analyses, which a report from kept summaries does without.
_LATE_LAUNCHES = "launch-bound"
_OF_SOME_LAUNCHES = frozenset({"many-small-collectives", "unfused-optimizer"})
_MOSTLY = 0.5


def specific_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, with `launch-bound` of a rank behind those that save most of it.

    Args:
        findings: The findings of all ranks, the largest saving first.
    """
    ordered = list(findings)
    for one in findings:
        if one.id != _LATE_LAUNCHES or one.saving_ns is None:
            continue
        causes = [
            place
            for place, other in enumerate(ordered)
            if other.id in _OF_SOME_LAUNCHES
            and other.rank == one.rank
            and (other.saving_ns or 0) >= _MOSTLY * one.saving_ns
        ]
        here = ordered.index(one)
        if causes and max(causes) > here:
            ordered.insert(max(causes), ordered.pop(here))
    return tuple(ordered)
