"""Uneven steps: some steps take more than twice the median, and no single phase is the reason.

Measured from the step record over the steady steps. The record does not show the cause, so no
saving is promised: it says how much time the slow steps cost and which they are.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.rules import slow_phase
from stepscope.advice.subject import Subject

ID = "uneven-steps"


def find(subject: Subject) -> list[Finding]:
    """The finding, if slow steps cost a notable share and `slow-phase` has no reason for them."""
    summary = subject.steps
    if summary is None or not summary.slow_steps:
        return []
    limits = subject.thresholds
    explained = {step for finding in slow_phase.find(subject) for step in finding.steps}
    slow = {
        step: excess_ns
        for step, excess_ns in zip(summary.slow_steps, summary.slow_excess_ns, strict=True)
        if step not in explained
    }
    excess_ns = sum(slow.values())
    share = excess_ns / max(1, summary.partition.total_ns)
    if share < limits.uneven_steps_share or not slow:
        return []
    return [
        Finding(
            id=ID,
            title=(
                f"{len(slow)} of {len(summary.steps)} steps "
                f"{'take' if len(slow) > 1 else 'takes'} more than twice the median"
            ),
            severity=Severity.MEDIUM if share >= limits.uneven_steps_medium else Severity.LOW,
            rank=subject.rank,
            saving_ns=None,
            saving_reason="the step record does not show what slows these steps",
            assumption="",
            predicted_step_ns=None,
            evidence=(
                Evidence("beyond the median, together", excess_ns, "ns"),
                Evidence("share of the time", share, "share"),
                Evidence("longest", summary.worst_ns, "ns"),
                Evidence("median step", summary.median_ns, "ns"),
            ),
            steps=tuple(slow),
            advice=(
                "See whether they come at regular distances (saving, evaluation, logging, garbage "
                "collection), with certain batches (long samples, new shapes), or at random "
                "(other work on the machine, a shared file system). Record a window over one."
            ),
        )
    ]
