"""How much a finding matters, by what it saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope.advice.finding import Finding, Severity
from stepscope.advice.thresholds import Thresholds


def severity_of(share: float, limits: Thresholds) -> Severity:
    """Severity by the share of the step that is at stake."""
    if share >= limits.saving_high:
        return Severity.HIGH
    return Severity.MEDIUM if share >= limits.saving_medium else Severity.LOW


def severity_again(finding: Finding, share: float, limits: Thresholds) -> Severity:
    """Severity of a finding that saves another share of the step than was thought.

    A low one stays low: it may rest on steps that recording made much longer.
    """
    return Severity.LOW if finding.severity is Severity.LOW else severity_of(share, limits)


def heavier(finding: Finding, others: Sequence[Severity]) -> Finding:
    """The finding, at least as severe as others that come from the same."""
    return replace(finding, severity=min((finding.severity, *others), key=list(Severity).index))


def without_saving(finding: Finding, reason: str) -> Finding:
    """The finding of which it is known, and said, that fixing it alone brings nothing."""
    return replace(
        finding,
        saving_ns=None,
        predicted_step_ns=None,
        severity=Severity.INFO,
        saving_reason=reason,
        assumption="",
    )


def with_saving(finding: Finding, saving_ns: int, limits: Thresholds) -> Finding:
    """The finding with another saving of the same step, and the severity that goes with it."""
    step_ns = (finding.saving_ns or 0) + (finding.predicted_step_ns or 0)
    return replace(
        finding,
        saving_ns=saving_ns,
        predicted_step_ns=step_ns - saving_ns,
        severity=severity_again(finding, saving_ns / max(1, step_ns), limits),
    )
