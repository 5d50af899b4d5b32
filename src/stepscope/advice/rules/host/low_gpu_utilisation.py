"""Low GPU utilisation: kernels run for less than half of the time, and no other finding says why.

Measured as the device's time in which any kernel runs, without what one-off calls kept it idle. The
cause named is the largest part of the rest in the breakdown of the step. Where another finding
explains why the device is idle, that one says more, and this one is left out (`is_explained`).
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stepscope.advice.evidence.believable import loss_of
from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.analysis.selection.partition import BUSY_PARTS, IDLE_WORDS, ONE_OFF, cause_words
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals

ID = "low-gpu-utilisation"
_OF_THE_REST = frozenset(
    {
        "tensor-cores-unused",
        "full-precision-matmuls",
        "unfused-attention",
        "slow-matmuls",
        "unfused-elementwise",
        "layout-copies",
        "heavy-recomputation",
        "memory-far-below-limit",
        "memory-near-limit",
    }
)
"""Findings about what the device does while it works, and about its memory."""
_ADVICE = {
    "op_dispatch": "Look at `stepscope show launches`: which calls and operators take the time.",
    "not_recorded": "Record with stacks to see what the host does there.",
    "backward": "Record with stacks to see what the host does between the operators of backward.",
    "python": "Look at the longest gaps (`stepscope show idle`) and the Python functions in them.",
    "device_wait": "Look at which streams wait for which (`stepscope show idle`).",
}


def is_explained(finding: Finding, others: Sequence[Finding]) -> bool:
    """Whether another finding of the same rank says why the device is idle."""
    return any(
        one.id not in (ID, *_OF_THE_REST) and (one.saving_ns is not None or one.severity.is_weighty)
        for one in others
        if one.rank == finding.rank
    )


def find(subject: Subject) -> list[Finding]:
    """The finding, if kernels run for a small part of the device's time."""
    window = subject.window
    if window is None or not window.has_gpu or window.once(loss_of).leaves_nothing:
        return []
    runs = window.work["kind"].is_in(["compute", "communication"])
    spans = window.work["device", "start_ns", "end_ns"].filter(runs)
    busy = _busy_share(window, spans)
    if busy is None or busy >= subject.thresholds.gpu_utilisation:
        return []
    parts = {cause: window.idle.of(cause) for cause in IDLE_WORDS if cause != ONE_OFF}
    largest = max(parts, key=lambda cause: parts[cause])
    cause, largest_ns = cause_words(largest), parts[largest]
    if window.timeline.exposed_memcpy_ns > largest_ns:
        largest, cause, largest_ns = "", BUSY_PARTS[2], window.timeline.exposed_memcpy_ns
    advice = _ADVICE.get(largest, "")
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"kernels run {percent(busy)} of the time; most of the rest is {cause}",
        severity=Severity.HIGH
        if busy < subject.thresholds.gpu_utilisation / 2
        else Severity.MEDIUM,
        reason="no single cause was found whose removal could be replayed",
        evidence=(
            Evidence("time in which kernels run", busy, "share"),
            Evidence(cause, window.device_share(largest_ns), "share"),
        ),
        advice=f"{advice} More work per step (a larger batch) fills the GPU better.".strip(),
    )


def _busy_share(window: WindowView, spans: pl.DataFrame) -> float | None:
    """Time in which kernels run, as a share of the devices' time; None: there is no time."""
    line, busy_ns = window.timeline, 0
    for (device,), rows in spans.partition_by("device", as_dict=True).items():
        busy = intervals.merge(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        # A damaged file may have work that tells no device.
        steps = line.steps.filter(pl.col("device").eq_missing(pl.lit(device)))
        if len(steps):
            # Device steps follow one another without gaps.
            start = int(steps["start_ns"][0])
            busy = intervals.clip(busy, start, start + int(steps["total_ns"].sum()))
        busy_ns += busy.total_ns
    return busy_ns / window.device_ns if window.device_ns else None
