"""Trace incomplete: what the trace lacks, and what therefore cannot be judged.

Three signs: the file is cut off or damaged; GPU work without its launch beyond a share; calls that
launch kernels, and no GPU work at all (the recorder lost the device's side).
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.replayed import finding_without_saving
from stepscope.advice.subject import Subject
from stepscope.trace.schema import Category

ID = "trace-incomplete"
_DAMAGE = (
    "truncated",
    "truncated_stream",
    "corrupt_stream",
    "salvaged",
    "skipped",
    "invalid_json",
    "unclosed",
)
_LAUNCHES = r"Launch(Kernel|CooperativeKernel)|EnqueueKernel"


def find(subject: Subject) -> list[Finding]:
    """The finding, with every sign that was seen."""
    evidence = [
        Evidence(problem.replace("_", " "), count, "count")
        for problem, count, _ in subject.problems
        if problem in _DAMAGE
    ]
    title = "the trace is cut off or damaged" if evidence else ""
    severity = Severity.MEDIUM
    window = subject.window
    if window is not None and window.has_gpu:
        unlinked = int(window.work["launch"].is_null().sum())
        share = unlinked / max(1, len(window.work))
        if share >= subject.thresholds.unlinked_work:
            title = title or f"{share:.0%} of the GPU work has no launch in the trace"
            severity = severity if evidence else Severity.INFO
            evidence.append(Evidence("GPU work without its launch", share, "share"))
    elif window is not None:
        launches = _launches(subject)
        if launches:
            title = title or "kernels were launched, but the trace has no GPU work"
            evidence.append(Evidence("calls that launch kernels", launches, "count"))
    if not evidence:
        return []
    return finding_without_saving(
        subject,
        rule=ID,
        title=title,
        severity=severity,
        reason="it is about what can be judged, not about the step",
        evidence=tuple(evidence),
        advice=(
            "Record again: let the window end before the process does, leave room on the disk, "
            "and keep other profilers (nsys, DCGM) off the GPU meanwhile."
        ),
    )


def _launches(subject: Subject) -> int:
    if subject.window is None:
        return 0
    trace = subject.window.trace
    names = trace.names.filter(
        pl.col("category").is_in([Category.RUNTIME.value, Category.DRIVER.value]),
        pl.col("name").str.contains(_LAUNCHES),
    ).select("name_id")
    return int(trace.events.join(names, on="name_id").select(pl.len()).collect().item())
