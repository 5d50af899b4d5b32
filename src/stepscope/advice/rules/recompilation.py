"""Recompilation: step after step compiles code again, instead of using what was compiled.

Measured from the ranges of torch.compile and the loading of modules on the threads that launch. It
recurs if at least a third of the recorded steps, at least two and one of the last two among them,
spend a notable share of their time compiling. Otherwise it is `compilation-in-window`: code that
was new. The saving assumes that what was compiled once is used in every step.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray, Intervals

ID = "recompilation"
_LEAST_STEPS = 2
_LEAST_SHARE = 1 / 3
_COMPILER = r"compile_inner"
"""The range of one compilation of one frame by TorchDynamo."""


def find(subject: Subject) -> list[Finding]:
    """The finding, if compiling recurs and the steps are shorter without it."""
    window = subject.window
    if window is None or not recurs(window, subject.thresholds.compilation):
        return []
    moments = compiling(window)
    graph = window.graph
    per_step = window.per_step(moments.total_ns)
    heavy = _heavy_steps(window, subject.thresholds.compilation)
    count = len(window.host_events(pl.col("name").str.contains(_COMPILER)))
    evidence = [
        Evidence("compiling, per step", per_step, "ns"),
        Evidence("steps that compile", int(heavy.sum()), "count"),
    ]
    if count:
        evidence.append(Evidence("compilations per step", count / window.steps, "count"))
    return replayed_finding(
        subject,
        window,
        unchanged(graph).scale_host(moments),
        rule=ID,
        title=f"{int(heavy.sum())} of {len(heavy)} recorded steps compile code again",
        assumption="what was compiled once is used in every step",
        evidence=tuple(evidence),
        steps=tuple(int(graph.steps[row]) for row in np.nonzero(heavy)[0]),
        advice=(
            "Find what changes with TORCH_LOGS=recompiles: mark sizes that change as dynamic "
            "(torch._dynamo.mark_dynamic, dynamic=True) or pad them to a few lengths, pass Python "
            "numbers that change as tensors, and call torch.compile once, outside the loop."
        ),
    )


def compiling(window: WindowView) -> Intervals:
    """The moments in which threads of the window compile or load compiled code."""
    return intervals.clip(window.graph.host.of(HostCause.COMPILATION), *window.window)


def recurs(window: WindowView, notable: float) -> bool:
    """Whether steps compile again and again.

    Args:
        window: The window.
        notable: Minimum share of a step that is spent compiling.
    """
    heavy = _heavy_steps(window, notable)
    if not heavy[-_LEAST_STEPS:].any():
        return False
    return bool(heavy.sum() >= max(_LEAST_STEPS, len(heavy) * _LEAST_SHARE))


def _heavy_steps(window: WindowView, notable: float) -> BoolArray:
    """For each step of the window whether compiling takes a notable share of it."""
    # On the host's clock: compiling in one step may be hidden behind the device's work of another.
    steps = window.trace.steps.filter(pl.col("step").is_in(list(window.graph.steps)))
    starts, ends = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    spent = intervals.covered(compiling(window), starts, ends)
    heavy: BoolArray = spent >= np.maximum(notable * (ends - starts), 1)
    return heavy
