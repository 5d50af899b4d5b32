"""Low GPU utilisation: kernels run for less than half of the time; and why.

Measured as the device's time in which any kernel runs. The cause is copying, where the device does
that in most of the rest of its time; else what holds most of the rest of the critical path. It has
findings of its own, with the saving; this one tells what they add up to.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.believable import loss_of
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.replayed import finding_without_saving
from stepscope.advice.subject import Subject
from stepscope.analysis.critical_path import GPU_CAUSES
from stepscope.analysis.timeline import Timeline
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals

ID = "low-gpu-utilisation"
_WORDS = {
    "input": "waiting for input",
    "synchronisation": "waiting for the GPU and refilling it",
    "allocation": "getting and freeing memory",
    "pageable copy": "copying from pageable memory",
    "annotated phase": "an annotated phase, such as a checkpoint",
    "annotation": "an annotated range that launches nothing",
    "launch": "launching",
    "dispatch": "dispatching operators",
    "python": "Python outside operators",
    "launch latency": "the latency of launches",
    "device gap": "gaps between dependent work",
    "other wait": "waits whose reason the trace does not show",
}


def find(subject: Subject) -> list[Finding]:
    """The finding, if kernels run for a small part of the device's time."""
    window = subject.window
    if window is None or not window.has_gpu or window.once(loss_of).leaves_nothing:
        return []
    runs = window.work["kind"].is_in(["compute", "communication"])
    spans = window.work["device", "start_ns", "end_ns"].filter(runs)
    busy = _busy_share(window.timeline, spans)
    if busy is None or busy >= subject.thresholds.gpu_utilisation:
        return []
    gpu = set(GPU_CAUSES.values())
    rest = [part for part in window.path.parts if part.name not in gpu]
    evidence = [Evidence("time in which kernels run", busy, "share")]
    cause = ""
    copying = window.timeline.exposed_memcpy_ns / window.timeline.total_ns
    if 2 * copying > 1 - busy:
        cause = "copying memory"
        evidence.append(Evidence("time in which it only copies", copying, "share"))
    elif rest:
        largest = max(rest, key=lambda part: part.total_ns)
        cause = _WORDS.get(largest.name, largest.name)
        share = window.path.share(largest)
        evidence += [
            Evidence("largest cause on the critical path", cause, "text"),
            Evidence("its share of the step", share, "share"),
        ]
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"the GPU runs kernels only {percent(busy)} of the time"
        + (f", mainly because of {cause}" if cause else ""),
        severity=Severity.HIGH
        if busy < subject.thresholds.gpu_utilisation / 2
        else Severity.MEDIUM,
        reason="it has several causes, and the finding of each has its own saving",
        evidence=tuple(evidence),
        advice=(
            "Work through the other findings by their saving; if there is none, give the GPU "
            "more work per step, with a larger batch."
        ),
    )


def _busy_share(line: Timeline, spans: pl.DataFrame) -> float | None:
    """Time in which kernels run, as a share of the devices' time; None: there is no time."""
    busy_ns = 0
    for (device,), rows in spans.partition_by("device", as_dict=True).items():
        busy = intervals.merge(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        # A damaged file may have work that tells no device.
        steps = line.steps.filter(pl.col("device").eq_missing(pl.lit(device)))
        if len(steps):
            # Device steps follow one another without gaps.
            start = int(steps["start_ns"][0])
            busy = intervals.clip(busy, start, start + int(steps["total_ns"].sum()))
        busy_ns += busy.total_ns
    return busy_ns / line.total_ns if line.total_ns else None
