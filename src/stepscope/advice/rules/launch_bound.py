"""Launch-bound: the host cannot launch work as fast as the GPU does it.

Measured as the share of the device's time in which it is idle because the next launch comes late,
while the host dispatches operators and calls the runtime. The saving assumes that dispatch and
launches cost nothing, as if the step were one CUDA graph; waiting for input or for the device, and
Python outside operators, stay. It may exceed that idle time: a host that is ahead also hides Python
and lets communication overlap. It never exceeds the host's time in dispatch and launches.
"""

from __future__ import annotations

from stepscope.advice.compiled_code import graphs_to_launch, what_is_left_out
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.subject import Subject
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.nullable import are_among

ID = "launch-bound"
_SLOWS = "recording slows dispatch"


def find(subject: Subject) -> list[Finding]:
    """The finding, if late launches leave the GPU idle, and the step is shorter without."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    idle_ns = window.idle.of("op_dispatch")
    share = idle_ns / max(1, window.idle.total_ns)
    if share < subject.thresholds.launch_bound_idle:
        return []
    graph = window.graph
    changes = unchanged(graph)
    lanes = sorted(graph.host_lanes)
    spent = intervals.empty()
    for lane in lanes:
        claims = graph.host.claims(lane)
        mine = intervals.union(claims[HostCause.LAUNCH], claims[HostCause.DISPATCH])
        changes = changes.scale_host(mine, 0.0, lanes=(lane,))
        # Threads may dispatch at the same time: the time is that in which any of them does.
        spent = intervals.union(spent, intervals.clip(mine, *window.window))
    launch = window.work["launch"]
    launches = int(are_among(launch, window.trace.event_count).sum())
    launches += int(launch.has_nulls())  # what has no known launch counts once
    slows = "recording with stacks slows dispatch much" if window.has_stacks else _SLOWS
    return replayed_finding(
        subject,
        window,
        changes,
        rule=ID,
        title="the host launches more slowly than the GPU works",
        assumption=(
            f"dispatch and launches cost nothing, as in a captured CUDA graph; {slows}, so an "
            "unrecorded step gains less"
        ),
        is_upper_bound=True,
        evidence=(
            Evidence("GPU idle for late launches", share, "share"),
            Evidence("idle for late launches, per step", window.per_device_step(idle_ns), "ns"),
            Evidence(
                "host time in dispatch and launches, per step",
                window.per_step(spent.total_ns),
                "ns",
            ),
            Evidence("calls that launch work, per step", window.per_step(launches), "count"),
            Evidence("pieces of GPU work per step", window.per_step(len(window.work)), "count"),
        ),
        advice=(
            f"Give the host less to launch: {graphs_to_launch(window)}, fused optimizers and "
            f"operators, or more work per launch (a larger batch).{what_is_left_out(window)}"
        ),
    )
