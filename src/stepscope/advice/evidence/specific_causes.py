"""Causes above symptoms: what makes the GPU wait, and the rank that stalls.

`launch-bound` promises what a step without any dispatch takes, so it nearly always saves more than
a finding about some of the launches. Where one of these is most of it, it is what to change first.
Only a step record tells what dispatch takes without recording. Without one, what else the GPU waits
for comes first if it waits for that longer than for late launches: recording does not slow that. A
host that stops for the GPU cannot wait for its next batch meanwhile, so `synchronisation` may
promise as much as `input-bound`. No CUDA graph holds a call that waits for the GPU, so where
`launch-bound` promises at best little more than `synchronisation`, these calls come first. Where
both save nearly the same, that is the wait for input. The same goes for pauses of the garbage
collector: a host that runs ahead hides them.

A phase that is far slower in some steps may be so because its threads wait for a CPU. The record
has such waits of the training thread alone, so `busy-cpus` comes first where it saves half as much.
In backward and communication, ranks wait for each other, and threads communicate that the record
knows nothing of: there `busy-cpus` of any rank comes first, even where it saves a quarter as much.

Ranks that train together wait for the one that stalls, so one pause is a stall on all of them, and
collectives that take far longer on those that wait. What it is seen by on these is a symptom. The
rank that spent the time in anything but waiting for others is where the cause is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from stepscope.advice.finding import Finding, raise_severity
from stepscope.run.figures import rank_names
from stepscope.run.step_record import BACKWARD, COMMUNICATION

IDLE_LABEL = "GPU idle for late launches"
"""The evidence of `launch-bound`: a share of the device's time."""
SPIKES_LABEL = "beyond the median, per step"
"""The evidence of a `slow-phase` that is slow in some steps."""

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
_BUSY_CPUS = "busy-cpus"
PHASES_WITH_WAITS = (f"'{BACKWARD}'", f"'{COMMUNICATION}'")
"""Phases in which ranks wait for others, as titles name them."""
_OF_WAITS = 0.25
"""Of the saving of such a phase: what `busy-cpus` must save to be behind it."""
_TIE = 0.05
"""Of the step: what a saving that is an upper bound is beyond a sure one at most to come second."""
_SYMPTOMS = {
    _LAUNCHES: (frozenset({"many-small-collectives", "unfused-optimizer"}), 0.5),
    "synchronisation": (frozenset({"input-bound", "garbage-collector"}), 0.9),
    "slow-phase": (frozenset({_BUSY_CPUS}), 0.5),
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
        if one.id == "slow-phase" and all(item.label != SPIKES_LABEL for item in one.evidence):
            continue  # slow in every step that has it
        specific, share = _SYMPTOMS[one.id]
        has_waits = _has_waits_for_ranks(one, findings)
        if has_waits:
            share = _OF_WAITS
        waits_ns = math.inf
        if one.id == _LAUNCHES and one.rank not in paced:
            waits_ns = _waits_for_launches(one)
        here = order.index(mine)
        causes = [
            place
            for place in range(here + 1, len(order))
            if ((other := findings[order[place]]).rank == one.rank or has_waits)
            and (
                other.id in specific
                or (other.id in _GPU_WAITS_FOR and (other.saving_ns or 0) > waits_ns)
                or _forbids_a_graph(one, other)
            )
            and (other.saving_ns or 0) >= share * one.saving_ns
        ]
        for place in causes:
            why = "most of that comes from it"
            other = findings[order[place]]
            if _forbids_a_graph(one, other):
                why = "no CUDA graph can hold its calls"
            elif other.rank != one.rank:
                why = f"rank {one.rank} may wait there for rank {other.rank}, whose CPUs are busy"
            elif other.id == _BUSY_CPUS:
                why = "the threads of the phase may wait for a CPU, too"
            elif other.id not in specific:
                why = "the GPU waits for it longer than for late launches"
            reasons[order[place]] = f"above {one.id}, because {why}"
        if causes:
            order.insert(max(causes), order.pop(here))
    return tuple(
        replace(findings[place], placed=reasons[place]) if place in reasons else findings[place]
        for place in order
    )


def _has_waits_for_ranks(one: Finding, findings: Sequence[Finding]) -> bool:
    """Whether a phase is slow in some steps in which its rank may wait for another."""
    return (
        one.id == "slow-phase"
        and any(name in one.title for name in PHASES_WITH_WAITS)
        and any(other.rank != one.rank for other in findings)
    )


def _forbids_a_graph(launches: Finding, other: Finding) -> bool:
    if launches.id != _LAUNCHES or other.id != "synchronisation":
        return False
    return (launches.saving_ns or 0) - (other.saving_ns or 0) <= _TIE * launches.step_ns


def _waits_for_launches(finding: Finding) -> float:
    """How long the GPU waits for late launches in a step, by the evidence of `launch-bound`."""
    shares = (float(one.value) for one in finding.evidence if one.label == IDLE_LABEL)
    return finding.step_ns * next(shares, math.inf)


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
        placed = f"above step {step} on other ranks, because they wait for {rank_names(ranks)}"
        first = min(ordered.index(one) for one in symptoms)
        for cause in reversed(causes):
            here = ordered.index(cause)
            del ordered[here]
            first = min(first, here)
            as_severe = raise_severity(cause, [symptom.severity for symptom in symptoms])
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
