"""Trace incomplete: what the trace lacks, and what therefore cannot be judged.

There are three signs: the file is cut off or damaged; a notable share of the GPU work has no
launch; or launches have no GPU work (the recorder lost the device's side; see `advice.believable`).
If the work without a launch ran on its streams before anything that was
launched in the trace, nothing was lost: it was launched before the recording began. Work that a
device starts by itself (MTIA's copies) never has a launch.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.believable import loss_of
from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.analysis.selection.names import by_distinct_name
from stepscope.run.figures import percent
from stepscope.trace.classify import is_started_by_device
from stepscope.trace.problems import READ_NO_FURTHER

ID = "trace-incomplete"
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
_NEARLY_ALL = 0.9


def find(subject: Subject) -> list[Finding]:
    """The finding, with every sign that was seen."""
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
        launched = window.work["launch", "start_ns", "lane_id"].filter(~by_device)
        unlinked = int(launched["launch"].is_null().sum())
        share = unlinked / max(1, len(launched))
        if share >= subject.thresholds.unlinked_work:
            before = _launched_before(launched)
            if before >= _NEARLY_ALL * unlinked:
                words = f"{percent(share)} of the GPU work was launched before the recording began"
                advice = advice if evidence else _BEFORE
            else:
                words = f"{percent(share)} of the GPU work has no launch in the trace"
            title = title or words
            severity = severity if evidence else Severity.INFO
            evidence.append(Evidence("GPU work without its launch", share, "share"))
    if window is not None and (loss := window.once(loss_of)).words:
        title = loss.words if severity is Severity.INFO else title or loss.words
        severity = Severity.MEDIUM
        advice = _LOST
        evidence.append(Evidence("launches without GPU work", loss.launches, "count"))
    if not evidence:
        return []
    return finding_without_saving(
        subject,
        rule=ID,
        title=title,
        severity=severity,
        reason="it limits what can be judged, and costs no time",
        evidence=tuple(evidence),
        advice=advice,
    )


def _launched_before(work: pl.DataFrame) -> int:
    """How much GPU work without its launch precedes all of its stream that has one."""
    first = pl.col("start_ns").filter(pl.col("launch").is_not_null()).min().over("lane_id")
    is_before = pl.col("launch").is_null() & (pl.col("start_ns") < first)
    return int(work.select(is_before.sum()).item())
