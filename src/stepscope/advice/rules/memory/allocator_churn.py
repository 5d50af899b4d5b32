"""Allocator churn: steady steps still allocate and free driver memory.

Measured as calls such as cudaMalloc and cudaFree. They are slow, and freeing waits until the GPU is
idle. The first step of a trace may get what later steps only use again: it counts only if it makes
no more such calls than another step. The saving assumes that there are none.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.calls.allocations import gets_or_frees_device_memory
from stepscope.analysis.calls.one_off import one_off_calls
from stepscope.analysis.graph.replay import unchanged

ID = "allocator-churn"


def find(subject: Subject) -> list[Finding]:
    """The finding, if steady steps get or free memory and that costs time."""
    window = subject.window
    if window is None or not window.has_gpu or len(window.graph.steps) < 2:
        return []
    # Few calls are of the group: patterns are looked for in their names alone.
    calls = window.calls.filter(pl.col("group") == "allocation").filter(
        gets_or_frees_device_memory()
    )
    once = one_off_calls(window.trace)["event"]
    calls = calls.filter(~pl.col("event").is_in(once.implode()))
    calls, steps = _of_steady_steps(window, calls)
    per_step = len(calls) / steps
    if per_step < subject.thresholds.allocator_calls:
        return []
    after = " after the first" if steps < window.steps else ""
    # Threads may be in such calls at the same time: the time is that in which any of them is.
    spent_ns = window.spans(calls).total_ns
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
        title="steady steps still allocate and free driver memory",
        assumption="no steady step allocates or frees driver memory",
        evidence=(
            Evidence(f"such calls per step{after}", per_step, "count"),
            Evidence("time in them per step", round(spent_ns / steps), "ns"),
        ),
        advice=(
            "Keep shapes steady (pad or bucket), drop torch.cuda.empty_cache() from the loop, "
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and leave some memory free."
        ),
        least=subject.thresholds.saving_low / 3,
    )


def _of_steady_steps(window: WindowView, calls: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The calls of the steps that count, and how many steps these are."""
    steps = window.trace.steps.filter(pl.col("step").is_in(list(window.graph.steps)))
    starts = steps["start_ns"].to_numpy()  # of the host, which makes the calls
    step = np.searchsorted(starts, calls["start_ns"].to_numpy(), side="right") - 1
    counts = np.bincount(np.maximum(step, 0), minlength=window.steps)
    if counts[0] <= counts[1:].max():
        return calls, window.steps
    return calls.filter(pl.Series(step >= 1, dtype=pl.Boolean)), window.steps - 1
