"""One tensor dominates: a single tensor is a large part of the peak.

Measured from the rank's memory snapshot, or from the host's memory with a census. Parameters,
gradients and optimizer state do not count: they are what the model is.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.advice.replayed import finding_without_saving
from stepscope.advice.subject import Subject
from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.questions.composition import peak
from stepscope.run.figures import percent

ID = "one-tensor-dominates"
_OF_THE_MODEL = [
    kind.value
    for kind in (
        MemoryCategory.PARAMETER, MemoryCategory.BUFFER, MemoryCategory.GRADIENT,
        MemoryCategory.OPTIMIZER_STATE,
    )
]  # fmt: skip


def find(subject: Subject) -> list[Finding]:
    """One finding for the largest tensor."""
    if subject.memory is None:
        return []
    held = peak(subject.memory)
    others = held.allocations.filter(~pl.col("category").cast(pl.String).is_in(_OF_THE_MODEL))
    if others.is_empty():
        return []
    row = others.row(0, named=True)
    size = row["allocated_bytes"]
    share = size / max(1, held.allocated_bytes)
    if share < subject.thresholds.memory_one_tensor:
        return []
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"one tensor is {percent(share)} of the peak memory",
        severity=Severity.INFO,
        reason="free memory alone does not shorten the step",
        evidence=(
            Evidence("size of the tensor", size, "bytes"),
            Evidence("made at", short(row["line"]), "text"),
            *(() if row["name"] is None else (Evidence("in", short(row["name"]), "text"),)),
            Evidence("held at the peak", held.allocated_bytes, "bytes"),
        ),
        advice=(
            "Compute it in chunks, so that only a part is held at a time. For logits, use a loss "
            "that fuses the last projection (Liger, or a chunked cross entropy)."
        ),
    )
