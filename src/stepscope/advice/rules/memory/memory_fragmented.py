"""Fragmented memory: much of what the allocator has reserved is free, but pinned by blocks in use.

Measured from the rank's memory snapshot at the fullest moment at which most is reserved. What is
free in segments that are wholly free goes back to the device when it is needed, and does not count.
Other settings of the allocator are simulated, and the best is named with the bytes that it saves.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.memory.questions.fragmentation import fragmentation
from stepscope.memory.questions.settings import settings
from stepscope.memory.schema import EXACT_SIZES
from stepscope.run.figures import percent

ID = "memory-fragmented"
_LEAST_BYTES = 64 * 1024 * 1024
_MOST_ERROR = 0.1
"""Of the reserved bytes: what the model may miss for its answer about other settings to count."""


def find(subject: Subject) -> list[Finding]:
    """One finding for the fullest device."""
    view = subject.memory
    if view is None or view.snapshot.settings.get(EXACT_SIZES):
        return []
    device = view.device()
    parts = fragmentation(view, moment=view.peak(device, "reserved_bytes"))
    pinned = parts.pinned_bytes
    share = pinned / max(1, parts.reserved_bytes)
    if pinned < max(_LEAST_BYTES, subject.thresholds.memory_unused * parts.reserved_bytes):
        return []
    answer = settings(view, device)
    better = answer.worth_a_run.filter(pl.col("saved_bytes") > 0)
    evidence = [
        Evidence("reserved at its peak", parts.reserved_bytes, "bytes"),
        Evidence("in use then", parts.in_use_bytes, "bytes"),
        Evidence("free, but pinned by blocks in use", pinned, "bytes"),
        Evidence("free, and given back when needed", parts.releasable_bytes, "bytes"),
    ]
    pins = parts.lines.filter(pl.col("line").is_not_null()).head(1)
    evidence += [Evidence("most of it is pinned by", short(line), "text") for line in pins["line"]]
    if len(better):
        name, saved = better["settings"][0], better["saved_bytes"][0]
        evidence.append(Evidence(f"saved by {name}", saved, "bytes"))
        advice = f"Set PYTORCH_CUDA_ALLOC_CONF={name}: by simulation it reserves that much less."
    elif answer.reproduction_error_share > _MOST_ERROR:
        advice = (
            "Try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, allocate what lives long before "
            "the loop, and pad inputs to a few sizes. What they would save is not known: the model "
            "of the allocator misses what was reserved here by "
            f"{percent(answer.reproduction_error_share)}."
        )
    else:
        advice = (
            "No setting of the allocator that was simulated helps: allocate what lives long before "
            "the loop, and pad inputs to a few sizes."
        )
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"{percent(share)} of the reserved memory is free, but pinned",
        severity=Severity.MEDIUM,
        reason="free memory alone does not shorten the step",
        evidence=tuple(evidence),
        advice=advice,
    )
