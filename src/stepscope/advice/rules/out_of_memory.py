"""Memory ran out: a request for GPU memory failed.

Measured from the rank's memory snapshot: what was asked and free, and what would have helped, by
simulation of the allocator.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.advice.replayed import finding_without_saving
from stepscope.advice.subject import Subject
from stepscope.memory.questions.oom import OutOfMemory, out_of_memory

ID = "out-of-memory"
_MOST = 3


def find(subject: Subject) -> list[Finding]:
    """One finding for the last request that failed."""
    view = subject.memory
    if view is None or not any(len(view.out_of_memory(device)) for device in view.devices):
        return []
    failed = out_of_memory(view)
    held = failed.categories.head(_MOST).select("category", "allocated_bytes").iter_rows()
    free = failed.device_free_bytes
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"a request for memory failed at {short(failed.line)}",
        severity=Severity.HIGH,
        reason="the run failed, so there is no step to shorten",
        evidence=(
            Evidence("cause", failed.cause, "text"),
            Evidence("asked for", failed.asked_bytes, "bytes"),
            *(() if free is None else (Evidence("free on the device", free, "bytes"),)),
            Evidence("reserved", failed.reserved_bytes, "bytes"),
            Evidence("free in it, but pinned", failed.pinned_bytes, "bytes"),
            *(Evidence(f"held: {category}", size, "bytes") for category, size in held),
        ),
        advice=_advice(failed),
    )


def _advice(failed: OutOfMemory) -> str:
    enough = failed.remedies.filter(pl.col("is_enough").fill_null(value=False)).head(_MOST)
    best = enough if len(enough) else failed.remedies.head(_MOST)
    words = [
        f"{row['remedy']} (needs {row['frees_bytes'] / 2**20:,.0f} MiB less)"
        for row in best.iter_rows(named=True)
    ]
    if not words:
        return "No single remedy that was tried frees anything: use a smaller model or more GPUs."
    how = "Would have helped"
    if len(enough):
        how = "Would have sufficed, by simulation"
    elif failed.capacity_bytes is not None:
        how = "No single one suffices, by simulation. Would have helped"
    return f"{how}, the cheapest first: {'; '.join(words)}."
