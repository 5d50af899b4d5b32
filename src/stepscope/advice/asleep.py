"""How long the training thread sleeps in a step: it neither runs nor waits for a CPU."""

from __future__ import annotations

from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.host.waits import shows_collectives
from stepscope.trace.arrays import intervals


def asleep_per_step(subject: Subject, window: WindowView) -> int:
    """What a step takes beyond running, waiting for a CPU and known waits, in ns.

    From the step record (Linux). Known waits are those for input and, by the trace, for other
    ranks. 0 where a GPU works, whose host waits for it, and where waits for other ranks are not
    known.

    Args:
        subject: The rank.
        window: Its window.
    """
    summary = subject.steps
    if summary is None or summary.host.is_on_device or window.has_gpu:
        return 0
    host = summary.host
    if host.cpu_ns is None or host.queued_ns is None:
        return 0
    if subject.has_peers and not shows_collectives(window.trace):
        return 0
    graph = window.graph
    waits = graph.host.of(HostCause.COMMUNICATION, lanes=(graph.main_lane,))
    waiting_ns = window.per_step(intervals.clip(waits, *window.window).total_ns)
    for_input_ns = round(summary.wait_ns * (1 - min(1.0, host.wait_cpu_share or 0.0)))
    known_ns = host.cpu_ns + host.queued_ns + for_input_ns + waiting_ns
    return max(0, summary.mean_ns - known_ns)
