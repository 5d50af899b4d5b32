"""Rules about compiling in steps."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity, seen, severity_of
from stepscope.analysis.calls.one_off import AUTOTUNING, one_off_calls
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause, compiles
from stepscope.analysis.record.summary import StepSummary
from stepscope.run.figures import duration, percent
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Intervals

_LEAST_STEPS = 2
_LEAST_SHARE = 1 / 3
_ASSUMPTION = "what was compiled once is used in every step"
_ADVICE = (
    "Find what changes with TORCH_LOGS=recompiles: mark sizes that change as dynamic "
    "(torch._dynamo.mark_dynamic, dynamic=True) or pad them to a few lengths, pass Python "
    "numbers that change as tensors, and call torch.compile once, outside the loop."
)
_ONCE = (
    "Code was compiled for something new: see what with TORCH_LOGS=recompiles. If it is a last, "
    "smaller batch, drop it (drop_last=True); if sizes change, mark them as dynamic or pad them. "
    "What remains, compile before the loop, and keep the cache (TORCHINDUCTOR_CACHE_DIR) between "
    "runs."
)
_LOADED = "what was loaded once is used in every step"
_ADVICE_ON_LOADS = (
    "A kernel is loaded when it first runs in a process, so these steps run kernels that did not "
    "run before. Triton makes one for each combination of types, constants and divisibility of the "
    "arguments: keep what changes few (padded sizes, do_not_specialize), and run all of them "
    "before the loop. If torch.compile makes them, TORCH_LOGS=recompiles names what changes."
)
_ONCE_LOADED = "a kernel is loaded when it first runs, not in every step"
_ONCE_COMPILED = "code is compiled when it or its shapes are new, not in every step"
_COMPILER = r"compile_inner"
"""The range of one compilation of one frame by TorchDynamo."""


def find_recompilation(subject: Subject) -> list[Finding]:
    """Recompilation: step after step compiles code again, instead of using what was compiled.

    Measured from the ranges of torch.compile and the loading of modules on the threads that launch.
    Where most of that is the loading of kernels outside these ranges, which is no compiling, the
    finding says so. It recurs if at least a third of the recorded steps, at least two and one of
    the last two among them, spend a notable share of their time compiling. Otherwise it is
    `compilation-in-window`: code that was new. The saving assumes that what was compiled once is
    used in every step.

    Most compilations happen outside the recorded window, and the step record has those of every
    step. It recurs there if at least three steady steps compile, one of them in their second half,
    and if that costs a notable share of all of them. What a step lost is what it took beyond the
    median step, at most what it spent compiling. Steps that compiled something new, in the middle
    of the run, are no part of the steady step, and there is no saving per step. Nor are slow first
    steps, of which at least three compile after another has: sizes change there.
    """
    return _from_trace(subject) or _from_record(subject)


def compiling_steps(subject: Subject) -> frozenset[int]:
    """The steady steps that compile again and again, by the step record."""
    summary = subject.steps
    if summary is None or not summary.goes_on_compiling:
        return frozenset()
    return frozenset(summary.compiling.steps)


def _from_record(subject: Subject) -> list[Finding]:
    summary = subject.steps
    if summary is None:
        return []
    if not summary.goes_on_compiling:
        return _once(subject, summary)
    found = summary.compiling
    share = found.lost_ns / max(1, summary.partition.total_ns)
    if share < subject.thresholds.compilation:
        return []
    return plain_finding(
        subject,
        rule="recompilation",
        title=f"{len(found.steps)} of {len(summary.steps)} steps compile code again",
        severity=severity_of(share, subject.thresholds),
        step_ns=summary.mean_ns,
        saving_ns=round(found.lost_ns / len(summary.steps)),
        assumption=_ASSUMPTION,
        evidence=(
            Evidence("compiling, per step", round(found.total_ns / len(summary.steps)), "ns"),
            Evidence("steps that compile", len(found.steps), "count"),
            Evidence("longest in one step", found.worst_ns, "ns"),
            Evidence("share of the time", share, "share"),
            Evidence("median step", summary.median_ns, "ns"),
            Evidence("measured by", "step record", "text"),
        ),
        steps=found.steps,
        advice=_ADVICE,
    )


def _once(subject: Subject, summary: StepSummary) -> list[Finding]:
    found, limits = summary.compiled_once, subject.thresholds
    usual_ns = max(1, summary.median_ns)
    if found.lost_ns < limits.slow_first_steps_steps * usual_ns:
        return []
    share = found.lost_ns / max(1, summary.observed_ns)
    is_one = len(found.steps) == 1
    which = f"step {found.steps[0]}" if is_one else f"{len(found.steps)} steps"
    how_long = "for" if is_one else "each for up to"
    return plain_finding(
        subject,
        rule="recompilation",
        title=f"{which} compiled code again, {how_long} {duration(found.worst_ns)}",
        severity=Severity.MEDIUM if share >= limits.slow_first_steps_medium else Severity.LOW,
        reason=_ONCE_COMPILED,
        evidence=(
            Evidence("compiling in these steps", found.total_ns, "ns"),
            Evidence("the same in steady steps", found.lost_ns / usual_ns, "factor"),
            Evidence("share of the observed time", share, "share"),
            Evidence("median step", summary.median_ns, "ns"),
            Evidence("measured by", "step record", "text"),
        ),
        steps=found.steps,
        advice=_ONCE,
    )


def _from_trace(subject: Subject) -> list[Finding]:
    window = subject.window
    if window is None or not recurs(window, subject.thresholds.compilation):
        return []
    moments = compiling(window)
    graph = window.graph
    heavy = _heavy_steps(window, subject.thresholds.compilation)
    count = len(window.host_events(pl.col("name").str.contains(_COMPILER)))
    loads = _mostly_loads(window)
    does, spent = ("load new kernels", _LOADING) if loads else ("compile code again", _COMPILING)
    return replayed_finding(
        subject,
        unchanged(graph).scale_host(moments),
        rule="recompilation",
        title=f"{int(heavy.sum())} of {len(heavy)} recorded steps {does}",
        assumption=_LOADED if loads else _ASSUMPTION,
        evidence=(
            Evidence(f"{spent}, per step", window.per_step(moments.total_ns), "ns"),
            Evidence(f"steps that {'load' if loads else 'compile'}", int(heavy.sum()), "count"),
            *seen("compilations per step", count / window.steps, "count"),
        ),
        steps=tuple(int(graph.steps[row]) for row in np.nonzero(heavy)[0]),
        advice=_ADVICE_ON_LOADS if loads else _ADVICE,
    )


_COMPILING, _LOADING = "compiling", "loading kernels"


def _mostly_loads(window: WindowView) -> bool:
    """Whether most of it is the loading of kernels in no stage of a compiler."""
    moments = compiling(window)
    stages = window.spans(window.host_events(compiles()))
    return 2 * intervals.difference(moments, stages).total_ns > moments.total_ns


def compiling(window: WindowView) -> Intervals:
    """The moments in which threads of the window compile code or load kernels."""
    return intervals.clip(window.graph.host.of(HostCause.COMPILATION), *window.window)


def recurs(window: WindowView, notable: float) -> bool:
    """Whether steps compile again and again.

    Args:
        notable: Minimum share of a step that is spent compiling.
    """
    heavy = _heavy_steps(window, notable)
    if not heavy[-_LEAST_STEPS:].any():
        return False
    return bool(heavy.sum() >= max(_LEAST_STEPS, len(heavy) * _LEAST_SHARE))


def _heavy_steps(window: WindowView, notable: float) -> BoolArray:
    # On the host's clock: compiling in one step may be hidden behind the device's work of another.
    steps = window.trace.steps.filter(pl.col("step").is_in(list(window.graph.steps)))
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    spent = intervals.covered(compiling(window), starts, ends)
    heavy: BoolArray = spent >= np.maximum(notable * (ends - starts), 1)
    return heavy


_SHARE = "share of the window"


def find_compilation_in_window(subject: Subject) -> list[Finding]:
    """Compilation in the window: recorded steps compile code, so they are not steady steps.

    Measured from the ranges of torch.compile and the loading of modules on the threads that launch.
    Code is compiled when it or its shapes are new, so such a window does not represent the run. If
    compilation recurs step after step, it is `recompilation`. Where most of the time goes into the
    loading of kernels outside these ranges, the finding says so.
    """
    window = subject.window
    if window is None:
        return []
    window = window.whole
    graph = window.graph
    moments = compiling(window)
    share = window.share(moments.total_ns)
    notable = subject.thresholds.compilation
    if share < notable or recurs(window, notable):
        return []
    per_step = intervals.covered(moments, graph.step_starts_ns, graph.step_ends_ns)
    steps = tuple(int(graph.steps[i]) for i in np.nonzero(per_step)[0]) if graph.steps else ()
    loads = _mostly_loads(window)
    tuned = one_off_calls(window.trace, window.window).filter(pl.col("kind") == AUTOTUNING)
    tuned_ns = intervals.intersection(moments, window.spans(tuned)).total_ns
    return plain_finding(
        subject,
        rule="compilation-in-window",
        title=(
            f"{percent(share)} of the recorded time is "
            f"{'the loading of kernels' if loads else 'compilation'}"
        ),
        severity=Severity.MEDIUM,
        reason=_ONCE_LOADED if loads else _ONCE_COMPILED,
        evidence=(
            Evidence(f"{_LOADING if loads else _COMPILING}, in the window", moments.total_ns, "ns"),
            *seen("of which autotuning", tuned_ns, "ns"),
            Evidence(_SHARE, share, "share"),
            Evidence("steps with it", len(steps), "count"),
        ),
        steps=steps,
        advice=(
            "Record later (skip_first, wait) to see steady steps. If it recurs there, the report "
            "says so (recompilation)."
        ),
    )


def share_of(finding: Finding) -> float:
    """Share of the window that such a finding says is compilation."""
    return next(float(item.value) for item in finding.evidence if item.label == _SHARE)
