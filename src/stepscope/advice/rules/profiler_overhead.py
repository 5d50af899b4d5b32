"""Profiler overhead: recording slows the steps so much that host times are not to be trusted.

Measured as the recorded steps' median against the unrecorded ones' (step record), or as the part of
the window that the profiler marks as its own overhead.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.replayed import finding_without_saving
from stepscope.advice.subject import Subject
from stepscope.analysis.host.causes import HostCause
from stepscope.trace.arrays import intervals

ID = "profiler-overhead"


def find(subject: Subject) -> list[Finding]:
    """The finding, if recording dominates what was recorded."""
    limits = subject.thresholds
    evidence = []
    factor = subject.recording_factor
    if factor >= limits.profiler_factor:
        evidence.append(Evidence("recorded steps take, times the others", factor, "factor"))
    window = subject.window
    if window is not None:
        own = intervals.clip(window.graph.host.of(HostCause.PROFILER), *window.window)
        if window.share(own.total_ns) >= limits.profiler_overhead:
            share = window.share(own.total_ns)
            evidence.append(Evidence("marked by the profiler as its own", share, "share"))
    if not evidence:
        return []
    return finding_without_saving(
        subject,
        rule=ID,
        title="recording slows the recorded steps",
        severity=Severity.LOW,
        reason="only recorded steps pay it",
        evidence=tuple(evidence),
        advice=(
            "Trust GPU times and shares more than host times, and record less: without stacks, "
            "shapes and memory, or fewer steps at a time."
        ),
    )
