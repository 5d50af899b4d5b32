"""Unfused optimizer: the optimizer updates parameters one by one, with many launches.

Measured as the pieces of GPU work launched within `Optimizer.step` per optimizer step, where
neither foreach nor fused operators do it. The saving assumes that the fused optimizer takes a
tenth of the host's time and half of the device's.

Without a GPU, the operators within `Optimizer.step` are counted instead. There, a fused optimizer
makes one pass over each tensor where the other makes one per operator: the saving assumes that it
takes a fifth of the time where moments are kept (Adam), and nearly half of it otherwise (SGD), as
measured on CPUs with tensors of 64 to 4,096 elements.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.graph.replay import unchanged
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Intervals
from stepscope.trace.arrays.nullable import are_among, filled

ID = "unfused-optimizer"
_ADVICE = (
    "Build the optimizer with fused=True (or foreach=True), and call zero_grad(set_to_none=True)."
)
_OF_ADAM = "aten::addcdiv"
_LEFT_OF_ADAM, _LEFT_OF_OTHERS = 0.2, 0.45
_FUSED = r"_foreach_|_fused_|multi_tensor_apply|FusedOptimizer|fused_?(adam|sgd|lamb)"


def find(subject: Subject) -> list[Finding]:
    """The finding, if an optimizer step launches many kernels of which few are fused."""
    window = subject.window
    if window is None:
        return []
    if not window.has_gpu:
        return _on_cpu(subject, window)
    spans, launched = optimizer_of(window)
    if launched.is_empty():
        return []
    times = len(spans)
    fused = launched.filter(pl.col("name").str.contains(_FUSED))
    per_time = len(launched) / max(1, times)
    few_fused = len(fused) * 2 < len(launched)
    if per_time < subject.thresholds.optimizer_kernels or not few_fused:
        return []
    changes = unchanged(window.graph).scale_host(spans, 0.1).scale_work(window.nodes(launched), 0.5)
    return replayed_finding(
        subject,
        window,
        changes,
        rule=ID,
        title=f"the optimizer launches {per_time:.0f} kernels per step",
        assumption="fused, it takes a tenth of the host's time and half of the device's",
        evidence=(
            Evidence("kernels per optimizer step", per_time, "count"),
            Evidence("host time in it per step", window.per_step(spans.total_ns), "ns"),
            Evidence(
                "device time per step", window.per_device_step(int(launched["dur_ns"].sum())), "ns"
            ),
        ),
        advice=_ADVICE,
    )


def _on_cpu(subject: Subject, window: WindowView) -> list[Finding]:
    spans = window.spans(_ranges(window))
    operators = window.main_spans(
        (pl.col("category") == "cpu_op") & pl.col("name").str.starts_with("aten::")
    )
    within = intervals.contains(spans, operators["start_ns"].to_numpy())
    names = window.names_of(operators.filter(pl.Series(within, dtype=pl.Boolean))["event"])
    times = max(1, len(spans))
    # Of an operator that consists of others, only the outermost is the optimizer's own call; the
    # difference does not matter for a count that is compared with a few dozen.
    per_time = len(names) / times
    few_fused = names.str.contains(_FUSED).sum() * 2 < len(names)
    if per_time < subject.thresholds.optimizer_kernels or not few_fused:
        return []
    has_moments = names.str.contains(_OF_ADAM).any()
    left = _LEFT_OF_ADAM if has_moments else _LEFT_OF_OTHERS
    lanes = (window.graph.main_lane,)
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph).scale_host(spans, left, lanes=lanes),
        rule=ID,
        title=f"the optimizer calls {per_time:.0f} operators per step",
        assumption=f"fused, it takes {percent(left)} of its time",
        evidence=(
            Evidence("operators per optimizer step", per_time, "count"),
            Evidence("time in it per step", window.per_step(spans.total_ns), "ns"),
        ),
        advice=_ADVICE,
    )


def work_of_optimizer(window: WindowView) -> pl.DataFrame:
    """The GPU work launched within optimizer steps: rows of the window's `work`."""
    return optimizer_of(window)[1]


def optimizer_of(window: WindowView) -> tuple[Intervals, pl.DataFrame]:
    """The moments of optimizer steps on the host and the GPU work launched in them, found once."""
    return window.once(_optimizer)


def _ranges(window: WindowView) -> pl.DataFrame:
    return window.host_events(
        (pl.col("group") == "optimizer_step")
        & pl.col("name").str.contains(r"(?i)step|^#{0,2} ?optimizer")
    )


def _optimizer(window: WindowView) -> tuple[Intervals, pl.DataFrame]:
    spans = window.spans(_ranges(window))
    work = window.work
    if not len(spans):
        return spans, work.clear()
    calls = window.calls
    within = intervals.contains(spans, calls["start_ns"].to_numpy())
    # A place of its own, which nothing is, for work without a known launch.
    unknown = window.trace.event_count
    launches = are_among(calls["event"].filter(pl.Series(within)), unknown + 1)
    launched = launches[filled(work["launch"], unknown)]
    return spans, work.filter(pl.Series(launched))
