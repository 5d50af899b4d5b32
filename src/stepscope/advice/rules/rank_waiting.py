"""Rank waiting: in its collectives this rank waits for others to arrive.

A collective's kernel runs from the moment this rank enters it until all have arrived and the data
is exchanged. The shortest of those of the same kind and size tells how long the exchange takes;
what others take beyond it is taken for waiting. One trace cannot tell waiting from a slow network:
the traces of all ranks can (`stepscope show stragglers`). The saving supposes that no rank is late.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.collectives import collectives, shortened
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.subject import Subject
from stepscope.analysis.what_if import unchanged

ID = "rank-waiting"
_LEAST_PEERS = 3


def find(subject: Subject) -> list[Finding]:
    """The finding, if collectives that take longer than their quickest peer lengthen the step."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    limits = subject.thresholds
    rows = collectives(window).filter(
        pl.col("peers") >= _LEAST_PEERS,
        # Single outliers are another rule's.
        pl.col("dur_ns") < limits.abnormal_collective_factor * pl.col("median_ns"),
    )
    if not len(rows):
        return []
    waiting = rows["dur_ns"] - rows["least_ns"]
    waited_ns = int(waiting.sum())
    if window.share(waited_ns) < limits.rank_waiting:
        return []
    total_ns = int(rows["dur_ns"].sum())
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph).shorten_work(shortened(window, rows, rows["least_ns"])),
        rule=ID,
        title="collectives take far longer than the quickest of their kind and size",
        assumption="all ranks arrive together: each collective takes what its quickest peer takes",
        evidence=(
            Evidence("beyond the quickest, per step", window.per_step(waited_ns), "ns"),
            Evidence("share of the time in them", waited_ns / max(1, total_ns), "share"),
            Evidence("collectives compared per step", len(rows) / window.steps, "count"),
        ),
        advice=(
            "Find the rank that comes last (stepscope show stragglers on all ranks' traces) and "
            "what it does before: input, uneven batches, Python. If none does, look at the network."
        ),
    )
