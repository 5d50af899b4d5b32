"""Memory near the limit: almost all of the GPU's memory is reserved.

Measured from the `[memory]` events against the size of the device. Nothing is lost yet: but the
next larger batch fails, and an allocator that finds nothing free stops the step to free memory.
"""

from __future__ import annotations

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.replayed import finding_without_saving
from stepscope.advice.subject import Subject

ID = "memory-near-limit"


def find(subject: Subject) -> list[Finding]:
    """One finding per device whose reserved memory comes near to its size."""
    window = subject.window
    if window is None:
        return []
    found = []
    for row in window.memory.drop_nulls("total_bytes").iter_rows(named=True):
        share = row["reserved_bytes"] / max(1, row["total_bytes"])
        if share < subject.thresholds.memory_near_limit:
            continue
        found += finding_without_saving(
            subject,
            rule=ID,
            title=f"{share:.0%} of the memory of GPU {row['device']} is reserved",
            severity=Severity.MEDIUM,
            reason="room in memory makes no step shorter by itself",
            evidence=(
                Evidence("reserved at the peak", row["reserved_bytes"], "bytes"),
                Evidence("allocated at the peak", row["allocated_bytes"], "bytes"),
                Evidence("memory of the device", row["total_bytes"], "bytes"),
            ),
            advice=(
                "Leave a tenth free: a smaller batch, activation checkpointing, or sharded "
                "optimizer states. If far more is reserved than allocated, it is fragmented: set "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
            ),
        )
    return found
