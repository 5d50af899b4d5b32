"""Rules about the optimizer: its update, and zeroing gradients."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.evidence.compiled_code import fusible_of
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.finding import Evidence, Finding, Severity, seen
from stepscope.analysis.calls.fusible import ADAM, ZERO_GRAD
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.partition import OPTIMIZER_STEP, without_closures
from stepscope.analysis.selection.partition import with_input_of
from stepscope.run.figures import percent
from stepscope.run.step_record import OPTIMIZER
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Intervals
from stepscope.trace.arrays.nullable import are_among, filled
from stepscope.trace.schema import Category

_ADVICE = "Build the optimizer with fused=True (or foreach=True)."
_ADVICE_ON_ZEROING = (
    "Build the optimizer with fused=True (or foreach=True), and call zero_grad(set_to_none=True)."
)
_ADVICE_ON_CPU = "Build the optimizer with fused=True."
_LBFGS = "#LBFGS."
_SEVERAL = 1.5
_OF_ADAM = "addcdiv"
_LEFT_OF_ADAM, _LEFT_OF_OTHERS = 0.2, 0.45
_LEFT_OF_FOREACH_ADAM, _LEFT_OF_FOREACH_OTHERS = 0.35, 0.6
_FOREACH = "aten::_foreach_"
_FUSED_BY_TENSOR = r"_fused_|FusedOptimizer|fused_?(adam|sgd|lamb)"
_FUSED = rf"_foreach_|multi_tensor_apply|{_FUSED_BY_TENSOR}"


def find_unfused_optimizer(subject: Subject) -> list[Finding]:
    """Unfused optimizer: the optimizer updates parameters one by one, with many launches.

    Measured as the pieces of GPU work launched within `Optimizer.step` per optimizer step, where
    neither foreach nor fused operators do it. What zeroes the gradients is listed separately, and
    part of the times. The saving assumes that the fused optimizer takes a tenth of the host's time.
    On the device, Adam's loop and the zeroing take what they do once fused (`calls.fusible`); other
    kernels take as long as now.

    Without a GPU, the operators within `Optimizer.step` are counted instead, where fused operators
    take less than half of its time: there, each of them calls some operators per tensor itself. A
    fused optimizer makes one pass over each tensor where the other makes one per operator: the
    saving assumes that it takes a fifth of the time where moments are kept (Adam), and nearly half
    of it otherwise (SGD), as measured on CPUs with tensors of 64 to 4,096 elements. Of the time of
    foreach operators, which call one operator per tensor on a CPU, it takes more. Where there is a
    step record, no more is saved than that share of the optimizer's part of an unrecorded step.

    LBFGS has no fused variant, and works with few long vectors anyway: there is no finding.
    """
    window = subject.window
    if window is None or _has_lbfgs(window):
        return []
    if not window.has_gpu:
        return _on_cpu(subject, window)
    if not updates_one_by_one(window, subject.thresholds.optimizer_kernels):
        return []
    spans, launched = optimizer_of(window)
    updating = _updating(window)
    per_time = len(updating) / _times(window)
    zeroing = (len(launched) - len(updating)) / _times(window)
    fusible = fusible_of(window)
    known = window.work["node"].to_numpy()[fusible.are_of(ADAM, ZERO_GRAD)]
    fused = window.graph.dur_ns.copy()
    fused[known] = fusible.rows["fused_ns"].to_numpy()[fusible.are_of(ADAM, ZERO_GRAD)]
    return replayed_finding(
        subject,
        unchanged(window.graph).scale_host(spans, 0.1).shorten_work(fused),
        rule="unfused-optimizer",
        title=_title(window, len(updating), "launches", "kernels"),
        assumption=f"fused, it takes a tenth of the host's time{_on_device(launched, window)}",
        evidence=(
            Evidence("kernels per optimizer step", per_time, "count"),
            *seen("and to zero the gradients", zeroing, "count"),
            Evidence("host time in it per step", window.per_step(spans.total_ns), "ns"),
            Evidence(
                "device time per step", window.per_device_step(int(launched["dur_ns"].sum())), "ns"
            ),
        ),
        advice=_ADVICE_ON_ZEROING if zeroing else _ADVICE,
    )


def updates_one_by_one(window: WindowView, least: float) -> bool:
    """Whether an optimizer step launches at least so many kernels, of which few are fused."""
    if not window.has_gpu or _has_lbfgs(window):
        return False
    updating = _updating(window)
    fused = updating.filter(pl.col("name").str.contains(_FUSED))
    return len(updating) / _times(window) >= least and len(fused) * 2 < len(updating)


@once
def _updating(window: WindowView) -> pl.DataFrame:
    """The GPU work of updates alone: without what zeroes the gradients."""
    spans, launched = optimizer_of(window)
    updates = _updates(window)
    return _launched_in(window, updates) if updates.total_ns < spans.total_ns else launched


def _on_device(launched: pl.DataFrame, window: WindowView) -> str:
    fusible = fusible_of(window)
    nodes = window.work["node"].to_numpy()
    mine = launched["node"].to_numpy()
    in_loop, zeroing = (np.isin(mine, nodes[fusible.are_of(name)]) for name in (ADAM, ZERO_GRAD))
    text = ""
    if in_loop.any():
        text += ", and one pass over parameters, gradients and moments on the device"
    if zeroing.any():
        text += "; nothing writes zeros"
    if (in_loop | zeroing).all():
        return text
    return f"{text}; {'its other' if text else 'its'} kernels take as long as now"


def _has_lbfgs(window: WindowView) -> bool:
    """Whether LBFGS steps, of which there is neither a fused nor a foreach variant."""
    names = window.names_of(_ranges(window)["event"])
    return bool(names.str.contains(_LBFGS, literal=True).any())


def _on_cpu(subject: Subject, window: WindowView) -> list[Finding]:
    spans = _without_closures(window, _ranges(window))
    updates = _updates(window)
    operators = window.main_spans(
        (pl.col("category") == "cpu_op") & pl.col("name").str.starts_with("aten::")
    )
    within = intervals.contains(updates, operators["start_ns"].to_numpy())
    operators = operators.filter(pl.Series(within, dtype=pl.Boolean))
    names = window.names_of(operators["event"])
    times = _times(window)
    # Of an operator that consists of others, only the outermost is the optimizer's own call; the
    # difference does not matter for a count that is compared with a few dozen.
    per_time = len(names) / times
    # A fused operator reads the number of each tensor's steps by operators: only time tells.
    fused = window.spans(operators.filter(names.str.contains(_FUSED_BY_TENSOR)))
    few_fused = fused.total_ns * 2 < updates.total_ns
    if per_time < subject.thresholds.optimizer_kernels or not few_fused:
        return []
    has_moments = names.str.contains(_OF_ADAM).any()
    left = _LEFT_OF_ADAM if has_moments else _LEFT_OF_OTHERS
    # The steps of tensors are counted by a foreach operator in every kind of optimizer.
    foreach = window.spans(operators.filter(names.str.starts_with(_FOREACH)))
    if foreach.total_ns * 2 > updates.total_ns:
        left = _LEFT_OF_FOREACH_ADAM if has_moments else _LEFT_OF_FOREACH_OTHERS
    lanes = (window.graph.main_lane,)
    return replayed_finding(
        subject,
        unchanged(window.graph).scale_host(spans, left, lanes=lanes),
        rule="unfused-optimizer",
        title=_title(window, len(names), "calls", "operators"),
        assumption=f"fused, it takes {percent(left)} of its time",
        evidence=(
            Evidence("operators per optimizer step", per_time, "count"),
            Evidence("time in it per step", window.per_step(spans.total_ns), "ns"),
        ),
        advice=_ADVICE_ON_CPU,
        most_ns=_most_ns(subject, left),
    )


def _title(window: WindowView, many: int, does: str, what: str) -> str:
    """How many a step has: in all its updates where it has several, as of a GAN."""
    updates = _times(window) / max(1, window.steps)
    if not window.graph.steps or updates < _SEVERAL:
        return f"the optimizer {does} {many / _times(window):,.0f} {what} per step"
    many_per_step = f"{many / window.steps:,.0f} {what} per step"
    return f"the optimizer {does} {many_per_step}, in {updates:.0f} updates"


def _most_ns(subject: Subject, left: float) -> int | None:
    """What fusing saves at most of an unrecorded step, where a record shows what that consists of.

    A record that does not time the optimizer leaves it the window's share of what is not the wait
    for input, as the report does.
    """
    if subject.steps is None:
        return None
    partition = subject.steps.partition
    if not partition.of(OPTIMIZER) and subject.host is not None:
        partition = with_input_of(subject.host.partition, partition)
    if not partition.of(OPTIMIZER):
        return None
    return round((1 - left) * partition.of(OPTIMIZER) / max(1, partition.steps))


@once
def optimizer_of(window: WindowView) -> tuple[Intervals, pl.DataFrame]:
    """The moments of optimizer steps on the host and the GPU work launched in them, found once."""
    spans = _without_closures(window, _ranges(window))
    return spans, _launched_in(window, spans)


@once
def _ranges(window: WindowView) -> pl.DataFrame:
    return window.host_events(
        (pl.col("group") == "optimizer_step")
        & pl.col("name").str.contains(r"(?i)step|^#{0,2} ?optimizer")
    )


@once
def _update_ranges(window: WindowView) -> pl.DataFrame:
    """The same without what only zeroes the gradients.

    Where torch's own ranges of optimizer steps are recorded, only what overlaps one updates: a
    phase of that name may lie around `zero_grad` alone.
    """
    is_zeroing = pl.col("name").str.contains("zero_grad", literal=True)
    rows = _ranges(window).filter(~is_zeroing)
    steps = rows.filter(pl.col("name").str.starts_with(OPTIMIZER_STEP))
    if steps.is_empty():
        return rows
    starts, ends = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
    return rows.filter(pl.Series(intervals.covered(window.spans(steps), starts, ends) > 0))


def _updates(window: WindowView) -> Intervals:
    return _without_closures(window, _update_ranges(window))


def _times(window: WindowView) -> int:
    """The number of updates; what is left of one around a closure may be in pieces."""
    return max(1, len(window.spans(_update_ranges(window))))


def _without_closures(window: WindowView, rows: pl.DataFrame) -> Intervals:
    """Their moments, up to the end of the last step: its update may span the end of recording."""
    is_step = window.names_of(rows["event"]).str.starts_with(OPTIMIZER_STEP).alias("is_step")
    spans = without_closures(rows.with_columns(is_step), _backward(window))
    return intervals.clip(spans, *window.window)


@once
def _backward(window: WindowView) -> pl.DataFrame:
    return window.host_events(pl.col("group") == "backward")


def _launched_in(window: WindowView, spans: Intervals) -> pl.DataFrame:
    work = window.work
    if not len(spans):
        return work.clear()
    calls = window.calls
    within = intervals.contains(spans, calls["start_ns"].to_numpy())
    # A place of its own, which nothing is, for work without a known launch.
    unknown = window.trace.event_count
    launches = are_among(calls["event"].filter(pl.Series(within)), unknown + 1)
    launched = launches[filled(work["launch"], unknown)]
    return work.filter(pl.Series(launched))


_ZEROING = r"^Optimizer\.zero_grad#"
_ACCUMULATING = "torch::autograd::AccumulateGrad"


def find_zeroed_gradients(subject: Subject) -> list[Finding]:
    """Zeroed gradients: they are filled with zeros, and then added to, instead of being dropped.

    Measured on the CPU, in recordings without GPU work (on GPUs, `fusible-pattern` and
    `unfused-optimizer` count what zeroes): the operators within `Optimizer.zero_grad` that write
    zeros, and the additions to gradients that are there (`aten::add_` within `AccumulateGrad`).
    Where a gradient is added to more often than it is zeroed, as with several backward passes per
    step, only the first addition after zeroing counts. `Module.zero_grad` has no range in a trace,
    so it is not seen.

    There is no saving. Without either, each gradient keeps the memory that backward wrote it to
    until it is dropped. If the allocator returns that to the system, every step gets new pages,
    which the kernel fills with zeros, and a first write to a page takes longer than filling it in
    user space. With glibc and gradients of megabytes, processes that do and processes that do not
    were both seen; a trace does not show which.
    """
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
    return plain_finding(
        subject,
        rule="zeroed-gradients",
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
    spans = window.spans(window.main_spans(outer))
    rows = window.main_spans(inner)
    within = intervals.contains(spans, rows["start_ns"].to_numpy())
    return rows.filter(pl.Series(np.asarray(within), dtype=pl.Boolean))
