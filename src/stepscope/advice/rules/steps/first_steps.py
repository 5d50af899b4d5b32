"""Rules about what comes once: the first steps, and one-off costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.advice.evidence.outlier_steps import extra_time, one_off_parts, one_offs_of_steps
from stepscope.advice.evidence.subject import Subject, about_gpu_work, plain_finding
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity, seen, short
from stepscope.analysis.calls.one_off import (
    AUTOTUNING,
    CONTEXT,
    GROWTH,
    MODULES,
    SEARCH,
    one_off_calls,
)
from stepscope.analysis.host.causes import CAUSES, NOT_RECORDED, HostCause
from stepscope.analysis.host.steady_steps import StepState
from stepscope.analysis.host.waits import epoch_starts
from stepscope.analysis.record.summary import StepSummary
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.outlier_steps import FIRST_FACTOR, START_UP_FACTOR
from stepscope.run.figures import duration, significant
from stepscope.trace.arrays import intervals


@dataclass(frozen=True)
class _Start:
    """The slow steps at the beginning.

    Attributes:
        excess_ns: What they took beyond the median of the steady steps, together.
        extra: What the extra time went into, where that is known.
    """

    steps: tuple[int, ...]
    excess_ns: int
    worst_ns: int
    median_ns: int
    observed_ns: int
    extra: tuple[Evidence, ...] = ()


def _from_record(summary: StepSummary) -> _Start | None:
    starts = summary.epoch_starts
    begins_epoch_ns = starts.others_ns + starts.longest_ns if starts.steps else 0
    if not summary.first_steps or summary.first_worst_ns <= FIRST_FACTOR * begins_epoch_ns:
        return None
    again = set(summary.first_steps).intersection(summary.compiled_once.steps)
    if 2 * len(again) >= len(summary.first_steps):
        return None
    return _Start(
        summary.first_steps,
        summary.first_excess_ns,
        summary.first_worst_ns,
        summary.median_ns,
        summary.observed_ns,
        (
            *seen("compiling in them", summary.first_compile_ns, "ns"),
            *seen("Stepscope's own, not counted", summary.own_ns, "ns"),
        ),
    )


def _from_trace(subject: Subject) -> _Start | None:
    window = subject.window
    slow = () if window is None else window.steady.of_state(StepState.START_UP)
    if window is None or not slow:
        return None
    steady = window.steady
    begin = set(epoch_starts(window.trace).steps)
    later = [step.dur_ns for step in steady.of_state(StepState.COMPLETE) if step.step in begin]

    def usual_ns(step: int) -> int:
        return max(later) if later and step in begin else steady.median_ns

    worst = max(slow, key=lambda step: step.dur_ns)
    return _Start(
        tuple(step.step for step in slow),
        sum(max(0, step.dur_ns - usual_ns(step.step)) for step in slow),
        worst.dur_ns,
        steady.median_ns,
        sum(step.dur_ns for step in steady.classified),
        extra_time(window, worst.step),
    )


def find_slow_first_steps(subject: Subject) -> list[Finding]:
    """Slow first steps: the run begins with steps that take far longer than the later ones.

    Measured from the step record: the unbroken run of steps at its beginning that took more than
    twice the median of the later steps. Without a record the steps of the trace are judged in the
    same way, and the evidence names what the slowest of them spent its extra time in. One-off calls
    in a recorded window are named as well (`calls.one_off`). What these steps took beyond the
    median was lost once: they are no part of the steady step, and there is no saving per step. One
    that begins an epoch is compared with later ones that do. Where most of them compile code again,
    `recompilation` has them.
    """
    start = _from_record(subject.steps) if subject.steps is not None else _from_trace(subject)
    if start is None:
        return []
    limits = subject.thresholds
    lost_steps = start.excess_ns / max(1, start.median_ns)
    if lost_steps < limits.slow_first_steps_steps:
        return []
    share = start.excess_ns / max(1, start.observed_ns)
    window = subject.window
    one_offs: tuple[Evidence, ...] = ()
    if window is not None and window.has_gpu:
        one_offs = one_off_parts(one_offs_of_steps(window, start.steps))
    return plain_finding(
        subject,
        rule="slow-first-steps",
        title=_title(start),
        severity=Severity.MEDIUM if share >= limits.slow_first_steps_medium else Severity.LOW,
        reason="a cost at the start of the run, paid once and not in every step",
        evidence=(
            Evidence("time lost at the start", start.excess_ns, "ns"),
            Evidence("the same in steady steps", lost_steps, "factor"),
            Evidence("share of the observed time", share, "share"),
            Evidence("slowest of them", start.worst_ns, "ns"),
            Evidence("steady step", start.median_ns, "ns"),
            Evidence("slow means, times the median", START_UP_FACTOR, "factor"),
            *start.extra,
            *one_offs,
        ),
        steps=start.steps,
        advice=(
            "Compilation, library start-up, first allocations and starting the loader's "
            "workers fall here. It matters for short or often restarted runs: keep the "
            "compile cache (TORCHINDUCTOR_CACHE_DIR) between runs, avoid changing shapes, and "
            "record windows after these steps."
        ),
    )


def _title(start: _Start) -> str:
    if len(start.steps) > 1:
        return f"the first {len(start.steps)} steps are slow: up to {duration(start.worst_ns)}"
    times = significant(start.worst_ns / max(1, start.median_ns))
    return f"the first step takes {duration(start.worst_ns)}, {times} times the others"


_LEAST_BEFORE_NS = 100_000_000
"""The time before the first GPU work counts from this length on."""
_MUCH = 0.25
"""Of the recorded time: what makes the severity low rather than info."""
_MOST_PARTS = 5
_ADVICE = (
    "Nothing in the step needs to change. Warm up before you measure or serve, and record later "
    "steps (a schedule with wait and warmup)."
)
_LEFT_OUT = {
    False: "these calls are left out of the step",
    True: "what the host does in it is left out of the step",
}
"""By whether autotuning is part of it."""
_MODULES = "Modules are loaded when a kernel is first launched; {} loads them at the start."
_EAGER_CUDA, _EAGER_HIP = "CUDA_MODULE_LOADING=EAGER", "HIP_ENABLE_DEFERRED_LOADING=0"
_ADVICE_OF = {
    CONTEXT: "The context is created once per process: keep processes alive.",
    SEARCH: (
        "torch.backends.cudnn.benchmark searches once per shape: keep shapes fixed, or turn it off."
    ),
    AUTOTUNING: (
        "Each configuration is timed once for each key, such as a shape: keep shapes few, keep the "
        "results between runs (Triton: TRITON_CACHE_AUTOTUNING=1; torch.compile: "
        "TORCHINDUCTOR_CACHE_DIR), and run each shape once before the loop. The kernels that it "
        "times still count as work of the GPU: a later window shows the step without them."
    ),
    GROWTH: "The allocator keeps what it got: later steps reuse it.",
}


@about_gpu_work
def find_one_off_costs(subject: Subject, window: WindowView) -> list[Finding]:
    """One-off costs: single calls and first runs that cost far more than their like, and the start.

    Measured are the host calls that `calls.one_off` finds, each by what it takes beyond its like,
    and the time from the first recorded event of the training thread to the first GPU work. They
    are no part of the step, and no saving rests on them. What lies in slow first steps belongs to
    `slow-first-steps`, which names it.
    """
    rows = _rows(subject, window)
    before_ns, parts = _before_first_work(window) if _starts_once(window, rows) else (0, ())
    recorded_ns = max(1, _recorded_ns(window))
    if before_ns < max(_LEAST_BEFORE_NS, subject.thresholds.saving_low * recorded_ns):
        before_ns = 0
    cost_ns = int(_cost(rows).sum())
    limits = subject.thresholds
    many_steps_ns = limits.slow_first_steps_steps * window.step_ns
    if cost_ns < min(limits.saving_low * recorded_ns, many_steps_ns):
        rows, cost_ns = rows.clear(), 0
    if not cost_ns and not before_ns:
        return []
    # A call before the first GPU work is a part of that time.
    first_ns = _first_work_ns(window)
    late = rows.filter(pl.col("start_ns") >= first_ns) if before_ns else rows
    total_ns = before_ns + int(_cost(late).sum())
    share = min(1.0, total_ns / recorded_ns)
    kinds = set(rows["kind"].to_list())
    of_kinds = [text for kind, text in _ADVICE_OF.items() if kind in kinds]
    if MODULES in kinds:
        is_hip = rows.filter(pl.col("kind") == MODULES)["what"].str.contains(r"\bhip").any()
        of_kinds.append(_MODULES.format(_EAGER_HIP if is_hip else _EAGER_CUDA))
    advice = " ".join((_ADVICE, *of_kinds))
    return plain_finding(
        subject,
        rule="one-off-costs",
        title=_title_of_costs(rows, before_ns, total_ns),
        severity=Severity.LOW if share >= _MUCH else Severity.INFO,
        reason=f"it is paid once; {_LEFT_OUT[AUTOTUNING in kinds]} and of all savings",
        evidence=(
            Evidence("in all", total_ns, "ns"),
            Evidence("share of the recorded time", share, "share"),
            *one_off_parts(rows),
            *seen("before the first GPU work", before_ns, "ns"),
            *seen("of which", "; ".join(parts) if before_ns else None, "text"),
        ),
        advice=advice,
    )


def _title_of_costs(rows: pl.DataFrame, before_ns: int, total_ns: int) -> str:
    if rows.is_empty():
        return f"{duration(before_ns)} pass before the first GPU work"
    largest = rows.with_columns(cost=_cost(rows)).sort("cost", descending=True).row(0, named=True)
    what = f"{largest['kind']} ({short(largest['what'])}, {duration(largest['cost'])})"
    if before_ns:
        return f"{duration(before_ns)} pass before the first GPU work; {what} is the longest call"
    if len(rows) == 1 and largest["kind"] == AUTOTUNING:
        return f"{what.rsplit(', ', 1)[0]}) takes {duration(largest['cost'])}, once"
    if len(rows) == 1:
        return f"one call takes {duration(largest['cost'])}, once: {what.rsplit(', ', 1)[0]})"
    return f"one-off costs of {duration(total_ns)} in {len(rows)} calls, the longest: {what}"


def _cost(rows: pl.DataFrame) -> pl.Series:
    return (rows["end_ns"] - rows["start_ns"] - rows["usual_ns"]).clip(lower_bound=0)


def _rows(subject: Subject, window: WindowView) -> pl.DataFrame:
    within = window.window if window.asked.steps is not None else None
    rows = one_off_calls(window.trace, within)
    named = {step for finding in find_slow_first_steps(subject) for step in finding.steps}
    inside = one_offs_of_steps(window, named)["event", "start_ns"]
    # What a compiler does is compilation, with the loads and the autotuning in it.
    compiled = window.graph.host.of(HostCause.COMPILATION)
    is_compiled = intervals.contains(compiled, rows["start_ns"].to_numpy())
    rows = rows.filter(~pl.Series(is_compiled, dtype=pl.Boolean))
    return rows.join(inside, on=["event", "start_ns"], how="anti", maintain_order="left")


def _starts_once(window: WindowView, rows: pl.DataFrame) -> bool:
    """Whether what comes before the first GPU work is the start of the program, and no step's part.

    A steady step may begin with a wait that each has. A single one that holds the creation of the
    context is the first of its process.
    """
    if window.asked.steps is not None:
        return False
    steps = window.trace.steps.filter(pl.col("step").is_in(list(window.graph.steps)))
    if steps.is_empty() or _first_work_ns(window) <= int(steps["start_ns"][0]):
        return True
    return len(steps) == 1 and CONTEXT in rows["kind"].to_list()


def _first_work_ns(window: WindowView) -> int:
    return int(recorded_work(window.trace)["start_ns"].to_numpy().min())


def _main_start_ns(window: WindowView) -> int:
    columns = window.trace.columns("lane_id", "start_ns")
    mine = columns["lane_id"].to_numpy() == window.graph.main_lane
    starts = columns["start_ns"].to_numpy()[mine]
    return int(starts.min()) if len(starts) else _first_work_ns(window)


def _recorded_ns(window: WindowView) -> int:
    """From the first event of the training thread to the end of the last GPU work."""
    return int(recorded_work(window.trace)["end_ns"].to_numpy().max()) - _main_start_ns(window)


def _before_first_work(window: WindowView) -> tuple[int, tuple[str, ...]]:
    start_ns, end_ns = _main_start_ns(window), _first_work_ns(window)
    if end_ns <= start_ns:
        return 0, ()
    lane, host = window.graph.main_lane, window.graph.host
    divided = host.divide(lane, np.array([start_ns]), np.array([end_ns]))[:, 0]
    found = []
    calls = one_off_calls(window.trace, (start_ns, end_ns), (lane,))
    named = calls.with_columns(dur=pl.col("end_ns") - pl.col("start_ns"))
    for kind, what, dur in named.select("kind", "what", "dur").iter_rows():
        found.append((dur, f"{short(what)} ({kind}) {duration(dur)}"))
    for cause in CAUSES:
        time_ns = int(divided[cause])
        if cause is not HostCause.ONE_OFF and time_ns:
            label = cause.word
            if cause is HostCause.PYTHON:
                label = "Python" if host.has_stacks else NOT_RECORDED
            found.append((time_ns, f"{label} {duration(time_ns)}"))
    found.sort(key=lambda part: -part[0])
    return end_ns - start_ns, tuple(label for _, label in found[:_MOST_PARTS])
