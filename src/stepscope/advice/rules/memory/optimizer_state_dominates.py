"""Optimizer state dominates: much of the peak is the optimizer's state.

Measured from the rank's memory snapshot, or from the host's memory with a census.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.questions.composition import peak
from stepscope.run.figures import percent

ID = "optimizer-state-dominates"
_EIGHT_BIT_SAVES = 0.75
"""Of the bytes of states in single precision."""


def find(subject: Subject) -> list[Finding]:
    """One finding for the fullest device."""
    if subject.memory is None or not subject.memory.is_complete:  # shares of a part say nothing
        return []
    held = peak(subject.memory)
    row = held.categories.filter(pl.col("category") == MemoryCategory.OPTIMIZER_STATE.value)
    if row.is_empty() or row["allocated_share"][0] < subject.thresholds.memory_optimizer_state:
        return []
    size = int(row["allocated_bytes"][0])
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"{percent(row['allocated_share'][0])} of the peak memory is optimizer state",
        severity=Severity.INFO,
        reason="free memory alone does not shorten the step",
        evidence=(
            Evidence("optimizer state at the peak", size, "bytes"),
            Evidence("held at the peak", held.allocated_bytes, "bytes"),
            Evidence("freed by 8-bit states", round(_EIGHT_BIT_SAVES * size), "bytes"),
            Evidence("freed by sharding over two ranks", size // 2, "bytes"),
        ),
        advice=(
            "Shard the state over the ranks (FSDP, ZeRO stage 1), keep it in 8 bit (bitsandbytes, "
            "torchao), or use an optimizer with less of it. The bytes of 8-bit states assume "
            "single precision now."
        ),
    )
