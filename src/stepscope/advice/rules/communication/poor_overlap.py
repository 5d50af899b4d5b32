"""Poor overlap: communication could run beside computation, and computation waits for it instead.

Measured as the share of communication that is hidden behind computation. The saving assumes that
computation no longer waits for collectives within a step: only the last work of a step does. Known
waits for late ranks and abnormal collectives have other causes and other remedies: they are assumed
to be fixed first, and are not part of this saving.
"""

from __future__ import annotations

import numpy as np

from stepscope.advice.evidence.collectives import LATE_RANKS_FIRST, undisturbed
from stepscope.advice.evidence.point_to_point import point_to_point
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.graph.kinds import EdgeKind, NodeKind
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.graph.step_graph import ORIGIN
from stepscope.run.figures import percent
from stepscope.trace.arrays.intervals import BoolArray

ID = "poor-overlap"


def find(subject: Subject) -> list[Finding]:
    """The finding, if little is hidden, there is enough to hide it behind, and it would save."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    line = window.timeline
    if line.overlap_share is None or line.overlap_share > subject.thresholds.poor_overlap:
        return []
    waits = _waits_for_collectives(window)
    if not waits.any() or line.compute_ns < line.exposed_comm_ns:
        return []
    calm, is_disturbed = undisturbed(window, subject.thresholds, subject.waits)
    first = f"; {LATE_RANKS_FIRST}" if is_disturbed else ""
    return replayed_finding(
        subject,
        window,
        calm.and_also(unchanged(window.graph).drop_edges(waits)),
        rule=ID,
        about_collectives=True,
        title=_title(line.overlap_share),
        before=calm if is_disturbed else None,
        assumption="within a step, computation waits for collectives only before its last work"
        f"{first}",
        is_upper_bound=True,
        evidence=(
            Evidence("hidden behind computation", line.overlap_share, "share"),
            Evidence(
                "all communication per step", window.per_device_step(line.total_comm_ns), "ns"
            ),
            Evidence("exposed per step", window.per_device_step(line.exposed_comm_ns), "ns"),
            Evidence(
                "times that computation waits, per step", int(waits.sum()) / window.steps, "count"
            ),
        ),
        advice=(
            "Start collectives as soon as their data is ready and wait as late as possible: "
            "asynchronous operations with wait() at the end, DDP's buckets, FSDP's forward and "
            "backward prefetching, pipelined all-to-all."
        ),
    )


def _waits_for_collectives(window: WindowView) -> BoolArray:
    """Edges from communication to other work that is not the last wait of its step."""
    graph = window.graph
    source, target = np.maximum(graph.source, ORIGIN), graph.target
    waits: BoolArray = (
        (graph.edge_kind == EdgeKind.WAIT)
        & (source >= 0)
        & (graph.kind[source] == NodeKind.COMMUNICATION)
        & (graph.kind[target] != NodeKind.COMMUNICATION)
        & ~point_to_point(window).is_one[source]
    )
    rows = np.nonzero(waits)[0]
    steps = graph.step[target[rows]]
    # Rows come in the order of their targets: of each step the last target keeps its waits.
    last = np.zeros(len(graph.steps) + 1, target.dtype)
    last[steps] = target[rows]
    waits[rows[target[rows] == last[steps]]] = False
    return waits


def _title(overlap_share: float) -> str:
    share = percent(overlap_share)
    words = "hardly any" if share == "0%" else f"only {share}"
    return f"{words} of the communication overlaps with computation"
