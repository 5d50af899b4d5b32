"""Abnormal collective: one takes far longer than others of the same kind and size.

`stepscope.analysis.abnormal_collectives` compares each with collectives of the same or a larger
size in the trace, and reports what the device's memory did at the time. If sizes were not recorded,
a collective is compared with those at the same place in the other steps. Such outliers come from a
late rank, from the network, or from memory that is close to full; the finding says which if the
other ranks' traces or the memory records show it. The saving assumes that each takes its expected
time.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.collectives import outliers, shortened
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.replayed import finding_without_saving, replayed_finding
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.abnormal_collectives import (
    ALLOCATION,
    BASELINE,
    MEMORY_FULL,
    MEMORY_FULL_AND_ALLOCATION,
)
from stepscope.analysis.graph.replay import unchanged

ID = "abnormal-collective"
_JOINED_BY = "rank "
_MEMORY = (MEMORY_FULL, ALLOCATION, MEMORY_FULL_AND_ALLOCATION)


def find(subject: Subject) -> list[Finding]:
    """The finding, if outliers among the collectives lengthen the step.

    Outliers in start-up steps and stalls are reported without a saving.
    """
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    return _in(subject, window) or ([] if window.whole is window else _in(subject, window.whole))


def _in(subject: Subject, window: WindowView) -> list[Finding]:
    odd = _with_waits(outliers(window, subject.thresholds), subject.waits)
    if not len(odd):
        return []
    worst = odd.sort(
        pl.col("dur_ns") - pl.col("expected_ns"), descending=True, maintain_order=True
    ).row(0, named=True)
    evidence = [
        Evidence("outliers in the window", len(odd), "count"),
        Evidence("worst", f"{worst['kind']} in step {_step(window, worst['step'])}", "text"),
        Evidence("it took", worst["dur_ns"], "ns"),
        Evidence("expected", worst["expected_ns"], "ns"),
        Evidence("expected from the median of", worst["expected_from"], "text"),
        Evidence("times the expected", worst["times"], "factor"),
    ]
    if worst["cause"] is not None:
        evidence.append(Evidence("seen at the time", worst["cause"], "text"))
    title = "single collectives take far longer than others of their kind and size"
    assumption = "each takes what others of its kind and size take"
    if 2 * int((odd["expected_from"] == BASELINE).sum()) > len(odd):
        title = "collectives take far longer than in the baseline"
        assumption = "each takes what comparable ones take in the baseline"
    steps = tuple(sorted({_step(window, step) for step in odd["step"]}))
    if window is not subject.window:
        lost_ns = int((odd["dur_ns"] - odd["expected_ns"]).sum())
        if window.share(lost_ns) < subject.thresholds.saving_low:
            return []
        return finding_without_saving(
            subject,
            rule=ID,
            title=title,
            severity=Severity.MEDIUM,
            reason="it happened in a start-up step or a stall, which the step shown excludes",
            evidence=tuple(evidence),
            steps=steps,
            advice=_advice(worst["cause"]),
        )
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph).shorten_work(shortened(window, odd, odd["expected_ns"])),
        rule=ID,
        title=title,
        assumption=assumption,
        about_collectives=True,
        evidence=tuple(evidence),
        steps=steps,
        advice=_advice(worst["cause"]),
    )


def _advice(cause: str | None) -> str:
    """What to do about a cause."""
    if cause is not None and cause.startswith(_JOINED_BY):
        late = cause.removeprefix(_JOINED_BY).partition(" ")[0]
        return (
            f"See what rank {late} did in that step before it joined (`stepscope show idle` on "
            "its trace): a slow batch, a checkpoint, Python, allocation."
        )
    if cause in _MEMORY:
        return (
            "Leave memory free on this rank: a smaller batch, activation checkpointing, "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no empty_cache() in the loop."
        )
    return (
        "See what this or another rank did just before: allocation close to the memory limit "
        "(lower the batch, expandable_segments), a slow batch, a checkpoint, or the network. "
        "Compare the ranks' traces of that step."
    )


def _with_waits(odd: pl.DataFrame, waits: pl.DataFrame | None) -> pl.DataFrame:
    """Outliers with the late rank as their cause, if the other ranks' traces show one."""
    if waits is None:
        return odd
    is_waiting = 2 * pl.col("wait_ns") >= pl.col("dur_ns") - pl.col("expected_ns")
    waited = pl.format(
        _JOINED_BY + "{} joined it {} ms later",
        "last_rank",
        (pl.col("wait_ns") / 1e6).round(2),
    )
    return (
        odd.join(waits, on="event", how="left", maintain_order="left")
        .with_columns(
            cause=pl.when(is_waiting.fill_null(value=False)).then(waited).otherwise("cause")
        )
        .select(odd.columns)
    )


def _step(window: WindowView, index: int) -> int:
    return window.graph.steps[index] if window.graph.steps else 0
