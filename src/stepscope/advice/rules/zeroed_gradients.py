"""Zeroed gradients: they are filled with zeros, and then added to, instead of being dropped.

Measured on the CPU, in recordings without GPU work (on GPUs, `fusible-pattern` and
`unfused-optimizer` count what zeroes): the operators within `Optimizer.zero_grad` that write zeros,
and the additions to gradients that are there (`aten::add_` within `AccumulateGrad`). Without
gradients that are there, backward hands each new gradient over without a pass over it.

The saving assumes that neither takes time. Where a gradient is added to more often than it is
zeroed, as with several backward passes per step, only the first addition after zeroing is saved:
the additions count with that share. `Module.zero_grad` has no range in a trace, so it is not seen.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.graph.replay import unchanged
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
    zeroing_spans, adding_spans = window.spans(zeroing), window.spans(adding)
    lanes = (window.graph.main_lane,)
    changes = unchanged(window.graph).scale_host(zeroing_spans, 0.0, lanes=lanes)
    if saved_share:
        changes = changes.scale_host(adding_spans, 1 - saved_share, lanes=lanes)
    added_ns = saved_share * adding_spans.total_ns
    share = window.share(zeroing_spans.total_ns + added_ns)
    return replayed_finding(
        subject,
        window,
        changes,
        rule=ID,
        title=f"filling gradients with zeros and adding to them takes {percent(share)} of the step",
        assumption="gradients are dropped, and backward hands new ones over without an addition",
        evidence=(
            Evidence("time in zeroing per step", window.per_step(zeroing_spans.total_ns), "ns"),
            Evidence("time in first additions per step", window.per_step(added_ns), "ns"),
            Evidence("operators that zero per step", len(zeroing) / window.steps, "count"),
        ),
        advice=(
            "Call optimizer.zero_grad(set_to_none=True), which is torch's default, instead of "
            "set_to_none=False. Code that reads .grad between zero_grad and backward then finds "
            "None."
        ),
    )


def _within(window: WindowView, outer: pl.Expr, inner: pl.Expr) -> pl.DataFrame:
    """Events on the main thread that lie within others."""
    spans = window.spans(window.main_spans(outer))
    rows = window.main_spans(inner)
    within = intervals.contains(spans, rows["start_ns"].to_numpy())
    return rows.filter(pl.Series(np.asarray(within), dtype=pl.Boolean))
