"""Compilation in the window: recorded steps compile code, so they are not steady steps.

Measured from the ranges of torch.compile and the loading of modules on the threads that launch.
Code is compiled when it or its shapes are new, so such a window does not represent the run. If
compilation recurs step after step, it is `recompilation`.
"""

from __future__ import annotations

import numpy as np

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.rules.steps.recompilation import compiling, recurs
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals

ID = "compilation-in-window"
_SHARE = "share of the window"


def find(subject: Subject) -> list[Finding]:
    """The finding, if compiling takes a notable part of the window."""
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
    return finding_without_saving(
        subject,
        rule=ID,
        title=f"{percent(share)} of the recorded time is compilation",
        severity=Severity.MEDIUM,
        reason="code is compiled when it or its shapes are new, not in every step",
        evidence=(
            Evidence("compiling, in the window", moments.total_ns, "ns"),
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
