"""Memory far below the limit: most of the GPU's memory is never used.

Measured from the rank's memory snapshot, or from the `[memory]` events, against the size of the
device, less what samples show outside torch's allocator. A larger batch would use the GPU better if
the step is bound by launches or communication, but it changes the training, so there is no saving
per step. From a snapshot, the finding says how much larger the batch could be if activations,
inputs and temporaries grow with it, nothing else does, and a tenth stays free.
"""

from __future__ import annotations

from stepscope.advice.evidence.fullness import Room, rooms
from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.run.figures import percent

ID = "memory-far-below-limit"
_OF_TRAINING = (
    "Try a larger micro-batch with fewer accumulation steps, less activation checkpointing, or "
    "fewer shards, and compare samples per second."
)
_OF_INFERENCE = "Try a larger batch or cache, or fewer GPUs, and compare samples per second."
_FILLED = 0.9
"""Share of the limit that a larger batch may fill."""


def find(subject: Subject) -> list[Finding]:
    """One finding for the fullest device on which no request failed, if most memory is unused."""
    known = [room for room in rooms(subject) if not room.has_failed]
    if not known:
        return []
    room = max(known, key=lambda one: one.share)
    if room.share > subject.thresholds.memory_far_below:
        return []
    times = larger_batch(room)
    is_inference = subject.memory is not None and subject.memory.categories.is_inference
    larger = () if times is None else (Evidence("room for a batch larger by", times, "factor"),)
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"only {percent(room.share)} of the GPU's memory is ever reserved",
        severity=Severity.INFO,
        reason="a larger batch does other work per step; judge it by samples per second",
        evidence=(
            Evidence("reserved at the peak", room.reserved_bytes, "bytes"),
            Evidence("limit of the allocator", room.limit_bytes, "bytes"),
            *larger,
        ),
        advice=_OF_INFERENCE if is_inference else _OF_TRAINING,
    )


def larger_batch(room: Room) -> float | None:
    """How many times as large the batch could be; None: what grows with it is not known."""
    if not room.batch_bytes:
        return None
    return 1 + (_FILLED * room.limit_bytes - room.reserved_bytes) / room.batch_bytes
