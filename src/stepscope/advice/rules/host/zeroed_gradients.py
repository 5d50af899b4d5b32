"""Zeroed gradients: they are filled with zeros, and then added to, instead of being dropped.

Measured on the CPU, in recordings without GPU work (on GPUs, `fusible-pattern` and
`unfused-optimizer` count what zeroes): the operators within `Optimizer.zero_grad` that write zeros,
and the additions to gradients that are there (`aten::add_` within `AccumulateGrad`). Where a
gradient is added to more often than it is zeroed, as with several backward passes per step, only
the first addition after zeroing counts. `Module.zero_grad` has no range in a trace, so it is not
seen.

There is no saving. Without either, each gradient keeps the memory that backward wrote it to until
it is dropped. If the allocator returns that to the system, every step gets new pages, which the
kernel fills with zeros, and a first write to a page takes longer than filling it in user space.
With glibc and gradients of megabytes, processes that do and processes that do not were both seen;
a trace does not show which.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals
from stepscope.trace.schema import Category

ID = "zeroed-gradients"
_ZEROING = r"^Optimizer\.zero_grad#"
_ACCUMULATING = "torch::autograd::AccumulateGrad"


def find(subject: Subject) -> list[Finding]:
    """The finding, if zeroing gradients and adding to them takes a notable part of a step."""
    window = subject.window
    if window is None or window.has_gpu:
        return []
    is_operator = pl.col("category") == Category.CPU_OP.value
    zeroing = _within(
        window,
        pl.col("name").str.contains(_ZEROING),
        is_operator & pl.col("name").is_in(["aten::zero_", "aten::_foreach_zero_"]),
    )
    if zeroing.is_empty():
        return []
    adding = _within(
        window, pl.col("name") == _ACCUMULATING, is_operator & (pl.col("name") == "aten::add_")
    )
    single = window.names_of(zeroing["event"]) == "aten::zero_"
    # How many tensors a foreach operator zeroes is not recorded: then additions do not count.
    saved_share = min(1.0, int(single.sum()) / max(1, len(adding))) if single.all() else 0.0
    zeroing_ns = window.spans(zeroing).total_ns
    added_ns = saved_share * window.spans(adding).total_ns
    share = window.share(zeroing_ns + added_ns)
    if share < subject.thresholds.saving_low:
        return []
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"filling gradients with zeros and adding to them takes {percent(share)} of the step",
        severity=Severity.LOW,
        reason=(
            "gradients that are dropped may need new memory in each step, which can take as long; "
            "stepscope try measures it"
        ),
        evidence=(
            Evidence("time in zeroing per step", window.per_step(zeroing_ns), "ns"),
            Evidence("time in first additions per step", window.per_step(added_ns), "ns"),
            Evidence("operators that zero per step", len(zeroing) / window.steps, "count"),
        ),
        advice=(
            "Call optimizer.zero_grad(set_to_none=True), which is torch's default, instead of "
            "set_to_none=False. Code that reads .grad between zero_grad and backward then finds "
            "None. Measure it: with an allocator that returns freed memory to the system, it may "
            "bring nothing."
        ),
    )


def _within(window: WindowView, outer: pl.Expr, inner: pl.Expr) -> pl.DataFrame:
    """Events on the main thread that lie within others."""
    spans = window.spans(window.main_spans(outer))
    rows = window.main_spans(inner)
    within = intervals.contains(spans, rows["start_ns"].to_numpy())
    return rows.filter(pl.Series(np.asarray(within), dtype=pl.Boolean))
