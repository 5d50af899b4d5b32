"""Memory ran out: a request for GPU memory failed.

Measured from the rank's memory snapshot: what was asked and free, and what would have helped, by
simulation of the allocator.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.memory.questions.oom import Cause, OutOfMemory, out_of_memory
from stepscope.run.figures import binary_size

ID = "out-of-memory"
_MOST = 3
_WENT_ON = 100
"""Requests after the failure from which on the program caught it, and went on."""


def find(subject: Subject) -> list[Finding]:
    """One finding for the last request that failed."""
    view = subject.memory
    if view is None or not any(len(view.out_of_memory(device)) for device in view.devices):
        return []
    failed = out_of_memory(view)
    held = failed.categories.head(_MOST).select("category", "allocated_bytes").iter_rows()
    sizes = (
        ("free on the device", failed.device_free_bytes),
        ("reserved", failed.reserved_bytes),
        ("free in it, but pinned", failed.pinned_bytes),
        ("reserved by private pools", failed.private_pools_bytes or None),
        ("held outside torch's allocator", failed.outside_bytes),
    )
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"a request for memory failed at {short(failed.line)}: {failed.cause.value}",
        severity=Severity.MEDIUM if failed.requests_after >= _WENT_ON else Severity.HIGH,
        reason="the run failed, so there is no step to shorten",
        evidence=(
            Evidence("why", failed.why, "text"),
            Evidence("asked for", failed.asked_bytes, "bytes"),
            *(Evidence(label, size, "bytes") for label, size in sizes if size is not None),
            Evidence("requests served after it", failed.requests_after, "count"),
            *(Evidence(f"held: {category}", size, "bytes") for category, size in held),
        ),
        advice=_advice(failed),
    )


def _advice(failed: OutOfMemory) -> str:
    enough = failed.remedies.filter(pl.col("is_enough").fill_null(value=False)).head(_MOST)
    best = enough if len(enough) else failed.remedies.head(_MOST)
    words = [
        row["remedy"]
        + (f" (frees {binary_size(row['frees_bytes'])})" if row["frees_bytes"] else "")
        for row in best.iter_rows(named=True)
    ]
    first = ""
    if failed.cause is Cause.LARGER_THAN_CARD:
        first = (
            f"Check the shape of what {failed.line} makes: {binary_size(failed.asked_bytes)} in "
            "one tensor. "
        )
    if not words:
        return first or "No remedy that was tried helps: use a smaller model or more GPUs."
    how = "Would have helped"
    if len(enough):
        how = "Would have been enough, by simulation"
    elif failed.capacity_bytes is not None:
        how = "None is known to be enough by itself. Would have helped"
    return f"{first}{how}, the cheapest first: {'; '.join(words)}."
