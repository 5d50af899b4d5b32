"""Allocator churn: steady steps still get memory from the driver and give it back.

Measured as calls such as cudaMalloc and cudaFree after the first step of the window. They are slow,
and freeing waits until the GPU is idle. The saving assumes that there are none.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.subject import Subject
from stepscope.analysis.calls.allocations import gets_or_frees_device_memory
from stepscope.analysis.graph.replay import unchanged

ID = "allocator-churn"


def find(subject: Subject) -> list[Finding]:
    """The finding, if steps after the first get or free memory and that costs time."""
    window = subject.window
    if window is None or not window.has_gpu or len(window.graph.steps) < 2:
        return []
    second_ns = int(window.graph.step_starts_ns[1])
    # Few calls are of the group: patterns are looked for in their names alone.
    calls = window.calls.filter(
        pl.col("group") == "allocation", pl.col("start_ns") >= second_ns
    ).filter(gets_or_frees_device_memory())
    per_step = len(calls) / (window.steps - 1)
    if per_step < subject.thresholds.allocator_calls:
        return []
    spent_ns = int((calls["end_ns"] - calls["start_ns"]).sum())
    changes = (
        unchanged(window.graph)
        .drop_waits_of_calls(calls["event"].to_numpy())
        .scale_host(window.spans(calls))
    )
    return replayed_finding(
        subject,
        window,
        changes,
        rule=ID,
        title="steady steps still get memory from the driver and give it back",
        assumption="no step after the window's first gets or frees memory of the driver",
        evidence=(
            Evidence("such calls per step after the first", per_step, "count"),
            Evidence("time in them per step", round(spent_ns / (window.steps - 1)), "ns"),
        ),
        advice=(
            "Keep shapes steady (pad or bucket), drop torch.cuda.empty_cache() from the loop, "
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and leave some memory free."
        ),
        least=subject.thresholds.saving_low / 3,
    )
