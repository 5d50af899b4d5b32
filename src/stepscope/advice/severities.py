"""How much a finding matters, by what it saves."""

from __future__ import annotations

from stepscope.advice.finding import Severity
from stepscope.advice.thresholds import Thresholds


def severity_of(share: float, limits: Thresholds) -> Severity:
    """Severity by the share of the step that is at stake."""
    if share >= limits.saving_high:
        return Severity.HIGH
    return Severity.MEDIUM if share >= limits.saving_medium else Severity.LOW
