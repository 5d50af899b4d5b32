"""Memory near the limit: almost all that the allocator can have of the GPU is reserved.

Measured from the rank's memory snapshot, or from the `[memory]` events, against the size of the
device, less what samples show outside torch's allocator. Nothing is lost yet: but the next larger
batch fails, and an allocator that finds nothing free stops the step to free memory. A GPU on which
a request failed has a finding of its own.
"""

from __future__ import annotations

from stepscope.advice.evidence.fullness import rooms
from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.run.figures import percent

ID = "memory-near-limit"
_OF_TRAINING = "a smaller batch, activation checkpointing, or sharded optimizer states"
_OF_INFERENCE = "fewer or shorter sequences at once, a smaller cache, or quantised weights"


def find(subject: Subject) -> list[Finding]:
    """One finding per device whose reserved memory comes near to its limit."""
    found = []
    is_inference = subject.memory is not None and subject.memory.categories.is_inference
    smaller = _OF_INFERENCE if is_inference else _OF_TRAINING
    for room in rooms(subject):
        if room.share < subject.thresholds.memory_near_limit or room.has_failed:
            continue
        source = (Evidence("limit known from", room.limit_source, "text"),)
        found += finding_without_saving(
            subject,
            rule=ID,
            title=f"{percent(room.share)} of the memory of GPU {room.device} is reserved",
            severity=Severity.MEDIUM,
            reason="free memory alone does not shorten the step",
            evidence=(
                Evidence("left", max(0, room.limit_bytes - room.reserved_bytes), "bytes"),
                Evidence("reserved at the peak", room.reserved_bytes, "bytes"),
                Evidence("allocated at the peak", room.allocated_bytes, "bytes"),
                Evidence("limit of the allocator", room.limit_bytes, "bytes"),
                *(source if room.limit_source else ()),
            ),
            advice=(
                f"Leave a tenth free: {smaller}. If far more is reserved than allocated, it is "
                "fragmented: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
            ),
        )
    return found
