"""A step that stalls on several ranks: the rank that kept the others comes first.

Ranks that train together wait for the one that stalls, so one pause is a stall on all of them, and
collectives that take far longer on those that wait. What it is seen by on these is a symptom. The
rank that spent the time in anything but waiting for others is where the cause is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.advice.finding import Finding
from stepscope.advice.severities import heavier
from stepscope.run.figures import ranks_in_words

GREW_MOST = "most of it went into"
"""Label of the evidence that names the part of a step that grew most."""
GREW_BY = "there, beyond the other steps"
"""Label of the evidence by how much."""

# By name: the rules themselves import analyses, which a report from kept summaries does without.
_STALL = "stalled-step"
_OF_COLLECTIVES = "abnormal-collective"
_WAITING = ("exposed communication", "idle: waiting for communication", "waiting for communication")
"""Parts of a step in which a rank may wait for another."""


def stalls_in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings, with a stall above those of other ranks that only waited for it.

    It is as severe as what it explains.

    Args:
        findings: The findings of all ranks, in the order in which they would be shown otherwise.
    """
    ordered = list(findings)
    stalls = [one for one in findings if one.id == _STALL and part_that_grew(one)]
    for step in sorted({one.steps[0] for one in stalls}):
        mine = [one for one in stalls if one.steps[0] == step]
        causes = [one for one in mine if part_that_grew(one) not in _WAITING]
        ranks = {one.rank for one in causes}
        symptoms = [
            one for one in ordered if one.rank not in ranks and _comes_from_waiting(one, step)
        ]
        if not causes or not symptoms:
            continue
        placed = f"above step {step} on other ranks, because they wait for {ranks_in_words(ranks)}"
        first = min(ordered.index(one) for one in symptoms)
        for cause in reversed(causes):
            here = ordered.index(cause)
            del ordered[here]
            first = min(first, here)
            as_severe = heavier(cause, [symptom.severity for symptom in symptoms])
            ordered.insert(first, replace(as_severe, placed=placed))
    return tuple(ordered)


def part_that_grew(stall: Finding) -> str | None:
    """The part of a stalled step that grew most; None where that is not known."""
    return next((str(item.value) for item in stall.evidence if item.label == GREW_MOST), None)


def _comes_from_waiting(one: Finding, step: int) -> bool:
    """Whether a finding is about waiting in a step that stalls, and about that step alone."""
    if one.steps != (step,) or one.saving_ns is not None:
        return False
    return one.id == _OF_COLLECTIVES or (one.id == _STALL and part_that_grew(one) in _WAITING)
