"""Abnormal collective: one takes far longer than others of the same kind and size.

Measured against its peers in the trace: the same operation, group and size; where the recorder did
not write the size, the same place in every step. Such outliers come from a rank that is late, from
the network, or from memory that is close to full: then getting and freeing memory stops the rank,
and the finding says so. The saving supposes that each takes the median of its peers.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.collectives import collectives, shortened
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.what_if import unchanged

ID = "abnormal-collective"
_BEFORE_NS = 100_000_000


def find(subject: Subject) -> list[Finding]:
    """The finding, if outliers among the collectives lengthen the step."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    limits = subject.thresholds
    rows = collectives(window).filter(pl.col("peers") > limits.abnormal_collective_peers)
    factor = pl.col("dur_ns") / pl.max_horizontal(pl.col("median_ns"), pl.lit(1_000))
    odd = rows.with_columns(factor=factor).filter(
        pl.col("factor") >= limits.abnormal_collective_factor
    )
    if not len(odd):
        return []
    worst = odd.sort("factor", descending=True).row(0, named=True)
    evidence = [
        Evidence("outliers in the window", len(odd), "count"),
        Evidence("worst", f"{worst['group']} in step {_step(window, worst['step'])}", "text"),
        Evidence("it took", worst["dur_ns"], "ns"),
        Evidence("its peers' median", round(worst["median_ns"]), "ns"),
        Evidence("times that", worst["factor"], "factor"),
    ]
    evidence += _memory_pressure(window, odd, limits.memory_near_limit)
    graph = window.graph
    return replayed_finding(
        subject,
        window,
        unchanged(graph).shorten_work(shortened(window, odd, odd["median_ns"].round())),
        rule=ID,
        title="single collectives take far longer than others of their kind and size",
        assumption="each takes as long as the median of its peers",
        evidence=tuple(evidence),
        steps=tuple(sorted({_step(window, step) for step in odd["step"]})),
        advice=(
            "See what this or another rank did just before: allocation close to the memory limit "
            "(lower the batch, expandable_segments), a slow batch, a checkpoint, or the network. "
            "Compare the ranks' traces of that step."
        ),
    )


def _step(window: WindowView, index: int) -> int:
    return window.graph.steps[index] if window.graph.steps else 0


def _memory_pressure(window: WindowView, odd: pl.DataFrame, near: float) -> list[Evidence]:
    """Whether memory was close to full, or was being got and freed, around the outliers."""
    found = []
    calls = window.calls.filter(pl.col("group") == "allocation")
    starts, ends = odd["start_ns"].to_numpy() - _BEFORE_NS, odd["end_ns"].to_numpy()
    times = calls["start_ns"].to_numpy()
    count = int(np.sum(np.searchsorted(times, ends) - np.searchsorted(times, starts)))
    if count:
        found.append(Evidence("cudaMalloc and cudaFree around them", count, "count"))
    full = window.memory.filter(pl.col("reserved_bytes") >= near * pl.col("total_bytes"))
    if len(full):
        share = full["reserved_bytes"][0] / full["total_bytes"][0]
        found.append(Evidence("memory reserved at its peak", share, "share"))
    return found
