"""Rules about the recording itself."""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.believable import NOT_UNDERSTOOD, loss_of
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.selection.names import by_distinct_name
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals
from stepscope.trace.classify import is_started_by_device
from stepscope.trace.model import Trace
from stepscope.trace.problems import READ_NO_FURTHER
from stepscope.trace.schema import Category

_DETAILS = {
    "with_stack": "stacks",
    "with_modules": "modules",
    "record_shapes": "shapes",
    "with_flops": "FLOPs",
    "profile_memory": "memory",
}
"""What torch's profiler records beside events, by the key of the trace's header that says so."""
_PYTHON_MEMORY = "python_memory"


def find_profiler_overhead(subject: Subject) -> list[Finding]:
    """Profiler overhead: recording slows the steps so much that host times are not to be trusted.

    Measured as the recorded steps' median against the unrecorded ones' (step record), or as the
    part of the window that the profiler marks as its own overhead. The advice names what the window
    recorded beyond operators and kernels, because that is what can be left out.
    """
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
    return plain_finding(
        subject,
        rule="profiler-overhead",
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
    details = _details(subject.window.trace)
    if not details:
        return (
            f"{trust}, and record fewer steps at a time: no detail (stacks, shapes, memory) was "
            "recorded that could be left out."
        )
    named = " and ".join(filter(None, (", ".join(details[:-1]), details[-1])))
    return f"{trust}, and record less: without {named}, or fewer steps at a time."


def _details(trace: Trace) -> list[str]:
    """What was recorded beyond operators and kernels, the most expensive first."""
    found = []
    has_frames = (trace.name_rows["category"] == Category.PYTHON_FUNCTION.value).any()
    for key, text in _DETAILS.items():
        # Files of 2021 do not say what was asked for, but show Python's functions.
        if trace.header.get(key) or (key == "with_stack" and has_frames):
            found.append(text)
    return found


_DAMAGE = (
    *READ_NO_FURTHER,
    "salvaged",
    "skipped",
    "invalid_json",
    "unclosed",
)
_LOST = (
    "Record again: let the window end before the process does, leave room on the disk, "
    "and keep other profilers (nsys, DCGM) off the GPU meanwhile."
)
_BEFORE = (
    "Nothing was lost: the host runs ahead, and the GPU was still busy with earlier work when the "
    "recording began. Annotate the steps (profiler.step()): then no step includes this work."
)
_NOT_UNDERSTOOD = (
    "Nothing was lost: `stepscope view`, `show` and `query` have all that the file holds. What "
    "limits the step shows in a recording of torch's profiler, or of a device whose lanes are "
    "understood."
)
_IMPOSSIBLE = (
    "The recorder wrote ends after the end of later work on the same stream; such work counts as "
    "long as it can have lasted at most. Record again, fewer steps at a time, with a newer driver "
    "or ROCm."
)
_NEARLY_ALL = 0.9


def find_trace_incomplete(subject: Subject) -> list[Finding]:
    """Trace incomplete: what the trace lacks, and what therefore cannot be judged.

    There are four signs: the file is cut off or damaged; a notable share of the GPU work has no
    launch; launches have no GPU work (the recorder lost the device's side); or the recorded ends of
    much of the work are impossible (see `advice.evidence.believable`). If the work without a launch
    ran on its streams before anything that was launched in the trace, and belongs to no recorded
    operator, nothing was lost: it was launched before the recording began.
    Work that a device starts by itself (MTIA's copies) never has a launch.
    """
    window = subject.window
    # Of a file that is cut off before its last event, no window is judged.
    harmless = () if window is None else READ_NO_FURTHER
    evidence = [
        Evidence(problem.replace("_", " "), count, "count")
        for problem, count, _ in subject.problems
        if problem in _DAMAGE and problem not in harmless
    ]
    title = "the trace is cut off or damaged" if evidence else ""
    severity = Severity.MEDIUM
    advice = _LOST
    if window is not None and window.has_gpu:
        by_device = by_distinct_name(window.work, is_started_by_device(pl.col("name")))
        launched = window.work["launch", "op", "start_ns", "lane_id"].filter(~by_device)
        unlinked = int(launched["launch"].is_null().sum())
        share = unlinked / max(1, len(launched))
        if share >= subject.thresholds.unlinked_work:
            before = _launched_before(launched)
            if before >= _NEARLY_ALL * unlinked:
                text = f"{percent(share)} of the GPU work was launched before the recording began"
                advice = advice if evidence else _BEFORE
            else:
                text = f"{percent(share)} of the GPU work has no launch in the trace"
            title = title or text
            severity = severity if evidence else Severity.INFO
            evidence.append(Evidence("GPU work without its launch", share, "share"))
    if window is not None and (loss := loss_of(window)).text:
        title = loss.text if severity is Severity.INFO else title or loss.text
        severity = Severity.MEDIUM
        advice = _LOST if loss.launches else _NOT_UNDERSTOOD
        if loss.impossible_ends:
            advice = _IMPOSSIBLE
            evidence.append(
                Evidence("GPU work with an impossible end", loss.impossible_ends, "count")
            )
        evidence += [
            Evidence("lanes not understood", count, "count")
            for problem, count, _ in subject.problems
            if problem in NOT_UNDERSTOOD
        ]
        if loss.launches:
            evidence.append(Evidence("launches without GPU work", loss.launches, "count"))
    if not evidence:
        return []
    return plain_finding(
        subject,
        rule="trace-incomplete",
        title=title,
        severity=severity,
        reason="it limits what can be judged, and costs no time",
        evidence=tuple(evidence),
        advice=advice,
    )


def _launched_before(work: pl.DataFrame) -> int:
    """How much GPU work without its launch precedes all of its stream that has one.

    Work of an operator that was recorded was launched in the recording.
    """
    first = pl.col("start_ns").filter(pl.col("launch").is_not_null()).min().over("lane_id")
    is_before = pl.col("launch").is_null() & pl.col("op").is_null() & (pl.col("start_ns") < first)
    return int(work.select(is_before.sum()).item())
