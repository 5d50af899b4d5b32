"""Profiler overhead: recording slows the steps so much that host times are not to be trusted.

Measured as the recorded steps' median against the unrecorded ones' (step record), or as the part of
the window that the profiler marks as its own overhead. The advice names what the window recorded
beyond operators and kernels, because that is what can be left out.
"""

from __future__ import annotations

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.analysis.host.causes import HostCause
from stepscope.trace.arrays import intervals
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

ID = "profiler-overhead"

_DETAILS = {
    "with_stack": "stacks",
    "with_modules": "modules",
    "record_shapes": "shapes",
    "with_flops": "FLOPs",
    "profile_memory": "memory",
}
"""What torch's profiler records beside events, by the key of the trace's header that says so."""
_EXECUTION_TRACE = "execution_trace"
_PYTHON_MEMORY = "python_memory"


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
        advice=_advice(subject),
    )


def _advice(subject: Subject) -> str:
    if subject.window is None and _PYTHON_MEMORY in subject.window_files:
        return (
            "Trust the times of the unrecorded steps: tracemalloc makes every allocation of Python "
            "slower. Trace fewer steps at a time, with one frame of each stack "
            "(tracemalloc_frames=1), and record times in other windows."
        )
    if subject.window is None:
        return "Trust the times of the unrecorded steps, and record fewer steps at a time."
    trust = "Trust GPU times and shares more than host times"
    if not subject.window.has_gpu:
        trust = "Trust shares, and the times of the unrecorded steps, more than the recorded times"
    details = _details(subject.window.trace, subject.window_files)
    if not details:
        return (
            f"{trust}, and record fewer steps at a time: no detail (stacks, shapes, memory) was "
            "recorded that could be left out."
        )
    named = " and ".join(filter(None, (", ".join(details[:-1]), details[-1])))
    return f"{trust}, and record less: without {named}, or fewer steps at a time."


def _details(trace: Trace, files: frozenset[str]) -> list[str]:
    """What was recorded beyond operators and kernels, the most expensive first."""
    found = ["torch's execution trace"] if _EXECUTION_TRACE in files else []
    has_frames = (trace.name_rows["category"] == Category.PYTHON_FUNCTION.value).any()
    for key, words in _DETAILS.items():
        # Files of 2021 do not say what was asked for, but show Python's functions.
        if trace.header.get(key) or (key == "with_stack" and has_frames):
            found.append(words)
    return found
