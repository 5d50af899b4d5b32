"""Slow random numbers: on the CPU, dropout and other random operators take much of the step.

Measured as the time of operators that draw random numbers (dropout's mask, initialisation, noise),
in recordings without GPU work. Most draw number after number from one generator, on one thread,
while matrix products use all of them. The saving is an upper bound: it assumes that drawing takes
no time at all.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.operators import analyse_operators
from stepscope.run.figures import percent
from stepscope.trace.classify import MATRIX_GROUPS
from stepscope.trace.schema import Category

ID = "slow-random-numbers"
_DRAWS = r"^aten::(bernoulli|normal|uniform|random|exponential|geometric|cauchy|log_normal|rand)"


def find(subject: Subject) -> list[Finding]:
    """The finding, if drawing random numbers takes a notable part of a step on the CPU."""
    window = subject.window
    if window is None or window.has_gpu:
        return []
    table = analyse_operators(window.trace, window.scope).table
    table = table.filter(pl.col("category") == Category.CPU_OP.value)
    drawing = table.filter(pl.col("name").str.contains(_DRAWS), pl.col("host_self_ns") > 0)
    drawing = drawing.sort("host_self_ns", "name", descending=[True, False])
    drawn_ns = int(drawing["host_self_ns"].sum())
    if not drawn_ns:
        return []
    products_ns = int(table.filter(pl.col("group").is_in(MATRIX_GROUPS))["host_self_ns"].sum())
    is_dropout = "aten::dropout" in table["name"] or "aten::native_dropout" in table["name"]
    is_drawing = (pl.col("category") == Category.CPU_OP.value) & pl.col("name").str.contains(_DRAWS)
    beside: tuple[Evidence, ...] = ()
    if products_ns:
        label = "share of the time of matrix products and convolutions"
        beside = (Evidence(label, drawn_ns / products_ns, "share"),)
    names = ", ".join(drawing["name"].head(3).to_list())
    share = window.share(drawn_ns)
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph).scale_host(window.spans(window.host_events(is_drawing)), 0.0),
        rule=ID,
        title=f"drawing random numbers takes {percent(share)} of the step",
        assumption="random numbers take no time",
        is_upper_bound=True,
        evidence=(
            Evidence("time in it per step", window.per_step(drawn_ns), "ns"),
            *beside,
            Evidence("calls per step", int(drawing["count"].sum()) / window.steps, "count"),
            Evidence("operators", names, "text"),
        ),
        advice=_DROPOUT if is_dropout else _OTHERS,
    )


_OTHERS = (
    "A CPU draws most random numbers on one thread. Draw fewer, draw them once for several steps, "
    "or prepare them in DataLoader workers; torch.compile draws them in parallel within fused "
    "loops."
)
_DROPOUT = (
    "A CPU draws a number for each element of dropout's mask, mostly on one thread. Use "
    "torch.compile, which draws in parallel within fused loops; drop whole channels of images "
    "(nn.Dropout2d), which needs far fewer numbers; place dropout where tensors are smaller; or "
    "leave it out where p is 0 and in evaluation (model.eval())."
)
