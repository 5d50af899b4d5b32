"""Exposed communication: the GPU communicates without computing at the same time.

Measured as the part of the device's time in collectives with no concurrent computation. The saving
assumes that computation hides all communication, which is the most that overlap, less data or a
faster network can achieve. What sends and receives wait for other ranks belongs to
`pipeline-bubble`; what they need to move data counts here. Abnormal collectives and known waits for
late ranks have other causes and other remedies: they are assumed to be fixed first, and are not
part of this saving.

Without GPU work, measured as the time in which the training thread waits for collectives that a
thread of the backend (gloo) runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.advice.evidence.collectives import LATE_RANKS_FIRST, undisturbed
from stepscope.advice.evidence.point_to_point import point_to_point, without_point_to_point
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.figures import binary_size, speed
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.calls.operands import plain_type
from stepscope.analysis.communication import analyse_communication
from stepscope.analysis.graph.kinds import NodeKind
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals

ID = "exposed-communication"
_ADVICE_ON_EXCHANGES = (
    "Start each exchange before the computation that does not need its data, and wait for it after "
    "that: in a ring, send and receive the next block while this one is worked on. Or send less. "
    "If an exchange takes far longer than the link needs for its data, compare the ranks: one that "
    "always comes late makes each exchange of its neighbours longer."
)
_OF_EXCHANGES = "; sends and receives need as long as the shortest, which may include waiting"
_HALF = ("bfloat16", "half", "float16")


def find(subject: Subject) -> list[Finding]:
    """The finding, if exposed communication is a notable part of the device's time."""
    window = subject.window
    if window is None:
        return []
    if not window.has_gpu:
        return _on_the_host(subject, window)
    line = window.timeline
    exchanges = point_to_point(window)
    exposed_ns = line.exposed_comm_ns - exchanges.exposed_wait_ns
    share = exposed_ns / max(1, window.device_ns)
    if share < subject.thresholds.exposed_communication:
        return []
    graph = window.graph
    communicates = (graph.kind == NodeKind.COMMUNICATION) & ~exchanges.is_one
    without_transfer = graph.dur_ns - np.where(exchanges.is_one, exchanges.transfer_ns, 0)
    calm, is_disturbed = undisturbed(window, subject.thresholds, subject.waits)
    first = f"; {LATE_RANKS_FIRST}" if is_disturbed else ""
    most = _most_exposed(window)
    hidden = 0.0 if line.overlap_share is None else line.overlap_share
    return replayed_finding(
        subject,
        window,
        unchanged(graph).scale_work(communicates, 0.0).shorten_work(without_transfer),
        rule=ID,
        about_collectives=True,
        title=f"{percent(share)} of the device's time is exposed communication",
        before=calm if is_disturbed else None,
        assumption=(
            "all communication overlaps with computation, which is an upper bound"
            f"{_OF_EXCHANGES if exchanges.exposed_transfer_ns else ''}{first}"
        ),
        is_upper_bound=True,
        evidence=(
            Evidence("exposed per step", window.per_device_step(exposed_ns), "ns"),
            Evidence("share of the device's time", share, "share"),
            Evidence(
                "all communication per step", window.per_device_step(line.total_comm_ns), "ns"
            ),
            *_waiting(window.per_device_step(exchanges.exposed_wait_ns)),
            Evidence("hidden behind computation", hidden, "share"),
            *_counted(
                int(np.sum(communicates)) / window.steps, len(exchanges.collectives) / window.steps
            ),
            *_bandwidth(most),
        ),
        advice=_advice(most) if communicates.any() else _ADVICE_ON_EXCHANGES,
    )


def _waiting(waited_ns: int) -> list[Evidence]:
    """What is part of all communication, but not of what is exposed here."""
    label = "of this, waiting in sends and receives, per step"
    return [Evidence(label, waited_ns, "ns")] if waited_ns else []


def _counted(collectives: float, exchanges: float) -> list[Evidence]:
    """How many collectives a step has, and how many sends and receives, where it has any."""
    counts = {"collectives per step": collectives, "sends and receives per step": exchanges}
    return [Evidence(label, count, "count") for label, count in counts.items() if count]


def _most_exposed(window: WindowView) -> dict[str, Any] | None:
    """The kind and size of collective that is exposed longest; None if no size is known."""
    sizes = analyse_communication(window.trace, window.scope).sizes
    known = without_point_to_point(sizes).drop_nulls(["message_bytes", "bus_bandwidth_gb_per_s"])
    return None if known.is_empty() else known.row(0, named=True)


def _bandwidth(most: dict[str, Any] | None) -> tuple[Evidence, ...]:
    """What it is and how fast: far below the link's speed, ranks wait or the network is slow."""
    if most is None:
        return ()
    return (
        Evidence("most exposed", f"{most['kind']} of {binary_size(most['message_bytes'])}", "text"),
        Evidence("between ranks", most["group_size"], "count"),
        Evidence("its bus bandwidth", speed(most["bus_bandwidth_gb_per_s"]), "text"),
    )


def _advice(most: dict[str, Any] | None) -> str:
    is_half = most is not None and plain_type(most["dtype"] or "") in _HALF
    less = "" if is_half else "BF16 gradients, "
    return (
        "Overlap it (smaller DDP buckets, FSDP prefetching, no wait between gradient and "
        f"reduction), send less ({less}accumulation over micro-batches), and check whether a rank "
        "comes late or the bus bandwidth is far below the link's."
    )


def _on_the_host(subject: Subject, window: WindowView) -> list[Finding]:
    """The finding for processes that communicate on a thread of their own."""
    graph = window.graph
    waits = graph.host.of(HostCause.COMMUNICATION, lanes=(graph.main_lane,))
    waits = intervals.clip(waits, *window.window)
    share = window.share(waits.total_ns)
    if share < subject.thresholds.exposed_communication:
        return []
    return replayed_finding(
        subject,
        window,
        unchanged(graph).scale_host(waits, 0.0, lanes=(graph.main_lane,)),
        rule=ID,
        about_collectives=True,
        title=f"{percent(share)} of the step is waiting for communication",
        assumption="no rank comes late, and computation hides all communication",
        is_upper_bound=True,
        evidence=(
            Evidence("waiting per step", window.per_step(waits.total_ns), "ns"),
            Evidence("share of the step", share, "share"),
            Evidence("waits per step", len(waits) / window.steps, "count"),
        ),
        advice=(
            "Compare the ranks first: if one has more work, input or Python, the others wait for "
            "it here. Then overlap it (asynchronous collectives, smaller DDP buckets) or send less."
        ),
    )
