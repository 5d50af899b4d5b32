"""A memory leak: steps leave memory behind that later steps do not free.

Measured from the rank's memory snapshot, or from the host's memory in its trace: what steps other
than the first and the last made, and is still held at the end of the last.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity, short
from stepscope.memory.questions.growth import growth
from stepscope.memory.simulator.capacity import capacity_of
from stepscope.run.figures import binary_size

ID = "memory-leak"
_MOST_LINES = 3


def find(subject: Subject) -> list[Finding]:
    """One finding for the lines that leak."""
    view = subject.memory
    if view is None:
        return []
    grown = growth(view)
    leaks = grown.lines.filter("is_leak")
    per_step = int(leaks["per_step_bytes"].sum())
    peak = view.peak_bytes(grown.device)
    if per_step < max(1, subject.thresholds.memory_leak * peak):
        return []
    leaks = leaks.sort("per_step_bytes", descending=True, maintain_order=True)
    lines = leaks.head(_MOST_LINES).select("line", "per_step_bytes").iter_rows()
    capacity = capacity_of(view.replay, grown.device).bytes
    reserved = view.curve(grown.device)["reserved_bytes"].to_numpy().max()
    left = None if capacity is None else max(0, capacity - int(reserved)) // per_step
    worst, most = leaks.select("line", "per_step_bytes").row(0)
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"every step leaves {binary_size(most)} behind at {short(worst)}",
        severity=Severity.HIGH,
        reason="freeing it does not shorten the step, but the run ends early otherwise",
        evidence=(
            Evidence("left behind by each step", per_step, "bytes"),
            *(Evidence(f"of it at {short(line)}", size, "bytes") for line, size in lines),
            Evidence("held from earlier steps at the end", grown.leaked_bytes, "bytes"),
            *(() if left is None else (Evidence("steps until memory is full", left, "count"),)),
        ),
        advice=(
            "Look for what keeps these tensors: a list of losses or outputs (keep loss.item() or "
            "output.detach().cpu()), a cache without a limit, a graph kept by retain_graph."
        ),
        steps=tuple(grown.steps.filter(pl.col("survived_bytes") > 0)["step"].to_list()),
    )
