"""Launch-bound: the host cannot launch work as fast as the GPU does it.

A rate of launches, so it takes many of them: one slow call, even in every step, is none. One-off
calls are left out.

Measured as the share of the device's time in which it is idle because the next launch comes late,
while the host dispatches operators and calls the runtime. Where something else of the host makes
the GPU wait, such as Python, faster launches shorten the step all the same, if the host limits it:
if it needs most of the step for itself, waits apart. The saving assumes that dispatch and
launches cost nothing, as if the step were one CUDA graph; waiting for input or for the device, and
Python outside operators, stay. It may exceed that idle time: a host that is ahead also hides Python
and lets communication overlap. It never exceeds the host's time in dispatch and launches.
"""

from __future__ import annotations

import numpy as np

from stepscope.advice.evidence.compiled_code import graphs_to_launch, what_is_left_out
from stepscope.advice.evidence.replayed import host_alone_of, replayed_finding
from stepscope.advice.evidence.specific_causes import IDLE_LABEL
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.arrays.nullable import are_among

ID = "launch-bound"
_SLOWS = "recording slows dispatch"


def find(subject: Subject) -> list[Finding]:
    """The finding, if late launches leave the GPU idle, and the step is shorter without."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    idle_ns = window.idle.of("op_dispatch")
    share = idle_ns / max(1, window.device_ns)
    launches = _launches(window)
    limits = subject.thresholds
    if launches < limits.launch_bound_launches:
        return []
    is_rate = share >= limits.launch_bound_idle
    graph = window.graph
    alone_ns = host_alone_of(window)
    if not is_rate and alone_ns < limits.launch_bound_host * graph.replayed_step_ns:
        return []
    changes = unchanged(graph)
    lanes = sorted(graph.host_lanes)
    spent, each = intervals.empty(), []
    for lane in lanes:
        claims = graph.host.claims(lane)
        mine = intervals.union(claims[HostCause.LAUNCH], claims[HostCause.DISPATCH])
        changes = changes.scale_host(mine, 0.0, lanes=(lane,))
        # Threads may dispatch at the same time: the time is that in which any of them does.
        spent = intervals.union(spent, intervals.clip(mine, *window.window))
        each.append(_time_per_launch(window, lane, mine))
    per_launch = np.sort(np.concatenate(each))[::-1]
    if 2 * per_launch[: window.steps].sum() >= per_launch.sum():
        return []  # One call per step is most of it: the rate is not what limits.
    slows = "recording with stacks slows dispatch considerably" if window.has_stacks else _SLOWS
    return replayed_finding(
        subject,
        window,
        changes,
        rule=ID,
        title=(
            "the host launches work more slowly than the GPU executes it"
            if is_rate
            else f"the host limits the step, and {percent(window.share(spent.total_ns))} of it is "
            "dispatch and launches"
        ),
        assumption=(
            f"dispatch and launches cost nothing, as in a captured CUDA graph; {slows}, so an "
            "unrecorded step gains less"
        ),
        is_upper_bound=True,
        evidence=(
            Evidence(IDLE_LABEL, share, "share"),
            Evidence("idle for late launches, per step", window.per_device_step(idle_ns), "ns"),
            Evidence(
                "host time in dispatch and launches, per step",
                window.per_step(spent.total_ns),
                "ns",
            ),
            Evidence("calls that launch work, per step", window.per_step(launches), "count"),
            Evidence("host time per launch, median", round(float(np.median(per_launch))), "ns"),
            Evidence("pieces of GPU work per step", window.per_step(len(window.work)), "count"),
        ),
        advice=(
            f"Reduce the number of launches: {graphs_to_launch(window)}, fused optimizers and "
            f"operators, or more work per launch (a larger batch).{what_is_left_out(window)}"
        ),
    )


def _launches(window: WindowView) -> int:
    """The number of calls that launch work."""
    launch = window.work["launch"]
    known = int(are_among(launch, window.trace.event_count).sum())
    return known + int(launch.has_nulls())  # what has no known launch counts once


def _time_per_launch(window: WindowView, lane: int, mine: Intervals) -> Int64Array:
    """How much dispatch and launching precedes each launch of a thread, itself included."""
    events = np.flatnonzero(are_among(window.work["launch"], window.trace.event_count))
    columns = window.trace.columns("lane_id", "start_ns", "dur_ns")
    events = events[columns["lane_id"].to_numpy()[events] == lane]
    ends = np.sort((columns["start_ns"].to_numpy() + columns["dur_ns"].to_numpy())[events])
    starts = np.concatenate(([window.window[0]], ends[:-1]))[: len(ends)]
    return intervals.covered(mine, np.minimum(starts, ends), ends)
