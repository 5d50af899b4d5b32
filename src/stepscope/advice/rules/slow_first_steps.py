"""Slow first steps: the run begins with steps that take far longer than the later ones.

Measured from the step record: the unbroken run of steps at its beginning that took more than twice
the median of the later steps. What they took beyond that median was lost once, so there is no
saving per step.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.subject import Subject
from stepscope.analysis.record.summary import SLOW_FIRST_FACTOR

ID = "slow-first-steps"


def find(subject: Subject) -> list[Finding]:
    """The finding, if the beginning lost as much time as several steady steps take."""
    summary = subject.steps
    if summary is None or not summary.first_steps:
        return []
    limits = subject.thresholds
    lost_steps = summary.first_excess_ns / max(1, summary.median_ns)
    if lost_steps < limits.slow_first_steps_steps:
        return []
    share = summary.first_excess_ns / max(1, summary.observed_ns)
    count = len(summary.first_steps)
    return [
        Finding(
            id=ID,
            title="the first step is slow" if count == 1 else f"the first {count} steps are slow",
            severity=Severity.MEDIUM if share >= limits.slow_first_steps_medium else Severity.LOW,
            rank=subject.rank,
            saving_ns=None,
            saving_reason="a cost at the start of the run, paid once and not in every step",
            assumption="",
            predicted_step_ns=None,
            evidence=(
                Evidence("time lost at the start", summary.first_excess_ns, "ns"),
                Evidence("that many steady steps", lost_steps, "factor"),
                Evidence("share of the observed time", share, "share"),
                Evidence("slowest of them", summary.first_worst_ns, "ns"),
                Evidence("steady step", summary.median_ns, "ns"),
                Evidence("slow means, times the median", SLOW_FIRST_FACTOR, "factor"),
            ),
            steps=summary.first_steps,
            advice=(
                "Compilation, library start-up, first allocations and starting the loader's "
                "workers fall here. It matters for short or often restarted runs: keep the "
                "compile cache (TORCHINDUCTOR_CACHE_DIR) between runs, avoid changing shapes, and "
                "record windows after these steps."
            ),
        )
    ]
