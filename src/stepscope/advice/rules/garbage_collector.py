"""Garbage collector: Python's collector stops the training thread.

Measured from its pauses: in a trace as torch wrote them (2.9 and later, `record_python_gc_info`),
else by the step record, which has them for every step. The saving assumes that the collector does
not run within steps. The record does not show which pauses a GPU waited for: then there is none.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.severities import severity_of
from stepscope.advice.subject import Subject
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.trace.arrays import intervals

ID = "garbage-collector"
_TITLE = "Python's garbage collector stops the step"
_ASSUMPTION = "the collector does not run within steps"
ADVICE = (
    "Call gc.freeze() after start-up, gc.disable(), and gc.collect(1) every so many "
    "steps; with several ranks, in the same step on all of them. Remove other calls of "
    "gc.collect()."
)


def find(subject: Subject) -> list[Finding]:
    """The finding, if pauses take a notable part of the step and cost time."""
    return _from_trace(subject) or _from_record(subject)


def _from_record(subject: Subject) -> list[Finding]:
    summary = subject.steps
    if summary is None:
        return []
    host = summary.host
    share = host.gc_ns / max(1, summary.mean_ns)
    if share < subject.thresholds.garbage_collection:
        return []
    saves = not host.is_on_device
    return [
        Finding(
            id=ID,
            title=_TITLE,
            severity=severity_of(share, subject.thresholds),
            rank=subject.rank,
            saving_ns=host.gc_ns if saves else None,
            saving_reason=""
            if saves
            else "the record does not show which pauses the GPU waited for",
            assumption=_ASSUMPTION if saves else "",
            predicted_step_ns=summary.mean_ns - host.gc_ns if saves else None,
            evidence=(
                Evidence("paused per step", host.gc_ns, "ns"),
                Evidence("share of the step", share, "share"),
                Evidence("most in one step", host.gc_worst_ns, "ns"),
                Evidence("mean step", summary.mean_ns, "ns"),
                Evidence("measured by", "step record", "text"),
            ),
            steps=(),
            advice=ADVICE,
            slows_everything=True,
        )
    ]


def _from_trace(subject: Subject) -> list[Finding]:
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
        title=_TITLE,
        assumption=_ASSUMPTION,
        evidence=(
            Evidence("pauses per step", len(pauses) / window.steps, "count"),
            Evidence("paused per step", window.per_step(pauses.total_ns), "ns"),
            Evidence("longest", int(pauses.lengths.max()), "ns"),
        ),
        advice=ADVICE,
        least=subject.thresholds.saving_low / 3,
    )
