"""Memory far below the limit: most of the GPU's memory is never used.

Measured from the `[memory]` events against the size of the device. A larger batch would use the GPU
better if the step is bound by launches or communication, but it changes the training, so there is
no saving per step.
"""

from __future__ import annotations

from stepscope.advice.figures import percent
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.replayed import finding_without_saving
from stepscope.advice.subject import Subject
from stepscope.analysis.selection.names import is_training

ID = "memory-far-below-limit"
_TRAINING = (
    "Try a larger micro-batch with fewer accumulation steps, less activation checkpointing, or "
    "fewer shards, and compare samples per second."
)
_INFERENCE = "Try a larger batch, and compare samples per second."


def find(subject: Subject) -> list[Finding]:
    """One finding for the fullest device, if even there most memory is unused."""
    window = subject.window
    if window is None:
        return []
    known = window.memory.drop_nulls("total_bytes")
    if not len(known):
        return []
    row = known.sort("reserved_bytes", descending=True, maintain_order=True).row(0, named=True)
    share = row["reserved_bytes"] / max(1, row["total_bytes"])
    if share > subject.thresholds.memory_far_below:
        return []
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"only {percent(share)} of the GPU's memory is ever reserved",
        severity=Severity.INFO,
        reason="a larger batch does other work per step; judge it by samples per second",
        evidence=(
            Evidence("reserved at the peak", row["reserved_bytes"], "bytes"),
            Evidence("memory of the device", row["total_bytes"], "bytes"),
        ),
        advice=_TRAINING if is_training(window.trace) else _INFERENCE,
    )
