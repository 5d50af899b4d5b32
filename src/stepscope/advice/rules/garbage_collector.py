"""Garbage collector: Python's collector stops the training thread.

Measured from its pauses as the recorder noted them (torch 2.9 and later, `record_python_gc_info`).
The saving supposes that it does not run within steps.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.subject import Subject
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.trace.arrays import intervals

ID = "garbage-collector"


def find(subject: Subject) -> list[Finding]:
    """The finding, if pauses take a notable part of the step and cost time."""
    window = subject.window
    if window is None:
        return []
    graph = window.graph
    pauses = intervals.clip(graph.host.of(HostCause.GARBAGE_COLLECTION), *window.window)
    if window.share(pauses.total_ns) < subject.thresholds.garbage_collection:
        return []
    return replayed_finding(
        subject,
        window,
        unchanged(graph).scale_host(pauses),
        rule=ID,
        title="Python's garbage collector stops the step",
        assumption="the collector does not run within steps",
        evidence=(
            Evidence("pauses per step", len(pauses) / window.steps, "count"),
            Evidence("paused per step", window.per_step(pauses.total_ns), "ns"),
            Evidence("longest", int(pauses.lengths.max()), "ns"),
        ),
        advice=(
            "Call gc.freeze() after start-up, gc.disable(), and gc.collect(1) every so many "
            "steps; with several ranks, in the same step on all of them."
        ),
        least=subject.thresholds.saving_low / 3,
    )
