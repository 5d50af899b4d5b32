"""Findings whose saving the step record tells."""

from __future__ import annotations

from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.analysis.record.summary import StepSummary


def recorded_finding(
    subject: Subject,
    summary: StepSummary,
    *,
    rule: str,
    title: str,
    severity: Severity,
    saving_ns: int,
    assumption: str,
    evidence: tuple[Evidence, ...],
    advice: str,
    steps: tuple[int, ...] = (),
) -> Finding:
    """A finding with a saving per step, which is taken from the mean steady step.

    Args:
        subject: What is looked at.
        rule: Id of the rule.
        title: What is wrong.
        severity: How much it matters.
        saving_ns: What it saves per step.
        assumption: What the saving assumes.
        evidence: The measurements.
        advice: What to do.
        steps: Steps in which it shows best.
    """
    return Finding(
        id=rule,
        title=title,
        severity=severity,
        rank=subject.rank,
        saving_ns=saving_ns,
        saving_reason="",
        assumption=assumption,
        predicted_step_ns=summary.mean_ns - saving_ns,
        evidence=evidence,
        steps=steps,
        advice=advice,
    )
