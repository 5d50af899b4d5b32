"""From where on something is worth a finding: every threshold, in one table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thresholds:
    """Limits of the rules. Shares are of the steady step and lie between 0 and 1.

    Attributes:
        input_bound_low: Share of waiting for input that is worth a finding.
        input_bound_medium: From this share on it is of medium severity.
        input_bound_high: From this share on it is of high severity.
        slow_first_steps_steps: The slow beginning is worth a finding if it lost as much time as
            so many steady steps take.
        slow_first_steps_medium: Share of the observed time from which on it is of medium severity.
        slow_phase_share: Share that a phase outside forward, backward and optimizer may have.
        slow_phase_excess: Share that the slow occurrences of one phase may cost beyond its median.
        slow_phase_high: Share of the saving from which on it is of high severity.
        uneven_steps_share: Share that slow steps without a known reason may cost beyond the median.
        uneven_steps_medium: From this share on it is of medium severity.
    """

    input_bound_low: float = 0.05
    input_bound_medium: float = 0.15
    input_bound_high: float = 0.35
    slow_first_steps_steps: float = 3.0
    slow_first_steps_medium: float = 0.25
    slow_phase_share: float = 0.15
    slow_phase_excess: float = 0.05
    slow_phase_high: float = 0.35
    uneven_steps_share: float = 0.05
    uneven_steps_medium: float = 0.2
