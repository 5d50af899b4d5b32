"""Activations dominate: much of the peak is kept from the forward for the backward pass.

Measured from the rank's memory snapshot, or from the host's memory with a census. What it would
cost to compute the activations again is the time of the modules that keep them, in the recorded
window, or of the functions that make them where no module is known.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.advice.recomputation_cost import lines_ns, modules_ns
from stepscope.advice.replayed import finding_without_saving
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.memory.categories.census import Census
from stepscope.memory.categories.kinds import MemoryCategory
from stepscope.memory.questions.composition import peak
from stepscope.run.figures import percent

ID = "activations-dominate"
_MOST = 3


def find(subject: Subject) -> list[Finding]:
    """One finding for the fullest device."""
    if subject.memory is None or not subject.memory.is_complete:  # shares of a part say nothing
        return []
    held = peak(subject.memory)
    kept = held.allocations.filter(pl.col("category") == MemoryCategory.ACTIVATION.value)
    size = int(kept["allocated_bytes"].sum())
    share = size / max(1, held.allocated_bytes)
    if not size or share < subject.thresholds.memory_activations:
        return []
    # A census names the modules; without one, the lines have to do.
    where = (
        kept.group_by(place=pl.coalesce("name", "line"))
        .agg(pl.col("allocated_bytes").sum())
        .sort("allocated_bytes", "place", descending=[True, False])
        .head(_MOST)
    )
    lines = (
        kept.group_by("line")
        .agg(pl.col("allocated_bytes").sum())
        .sort("allocated_bytes", "line", descending=[True, False])
        .head(_MOST)
    )
    costs = _recomputation(
        subject.window, subject.memory.census, where["place"].to_list(), lines["line"].to_list()
    )
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"{percent(share)} of the peak memory is activations",
        severity=Severity.INFO,
        reason="checkpointing lengthens steps; a larger batch in the memory that it frees may make "
        "up for it",
        evidence=(
            Evidence("activations at the peak", size, "bytes"),
            Evidence("held at the peak", held.allocated_bytes, "bytes"),
            *(Evidence(f"of them in {short(p)}", n, "bytes") for p, n in where.iter_rows()),
            *costs,
        ),
        advice=(
            "Checkpoint the modules that keep most (torch.utils.checkpoint, or the framework's "
            "activation checkpointing), or use a smaller micro-batch with more accumulation."
        ),
    )


def _recomputation(
    window: WindowView | None, census: Census | None, places: list[str], lines: list[str]
) -> list[Evidence]:
    """What it costs to make the activations again: of their modules, else of their lines."""
    if window is None:
        return []
    of_modules = modules_ns(window, census, places) if census is not None else {}
    if of_modules:
        return [
            Evidence(f"recomputing {short(name)} takes, per step", cost_ns, "ns")
            for name, cost_ns in of_modules.items()
        ]
    return [
        Evidence(f"recomputing {short(line)} takes at most, per step", cost_ns, "ns")
        for line, cost_ns in lines_ns(window, lines).items()
    ]
