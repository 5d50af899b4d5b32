"""Heavy recomputation: activation checkpointing runs a notable part of the forward twice.

Measured as the GPU work (without a GPU: the main thread's time) of operators that run again inside
the backward. The saving assumes that nothing is recomputed, for which memory must be found.
"""

from __future__ import annotations

from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.graph.replay import unchanged
from stepscope.run.figures import percent

ID = "heavy-recomputation"


def find(subject: Subject) -> list[Finding]:
    """The finding, if recomputation takes a notable part of the step."""
    window = subject.window
    if window is None:
        return []
    moments, nodes = window.recomputed
    graph = window.graph
    if window.has_gpu:
        spent_ns = int(graph.dur_ns[nodes].sum())
        whole_ns = int(graph.dur_ns[graph.is_gpu].sum())
        recomputed_ns = window.per_device_step(spent_ns)
    else:
        spent_ns, whole_ns = moments.total_ns, graph.total_ns
        recomputed_ns = window.per_step(spent_ns)
    share = spent_ns / max(1, whole_ns)
    if share < subject.thresholds.recomputation:
        return []
    return replayed_finding(
        subject,
        window,
        unchanged(graph).scale_work(nodes, 0.0).scale_host(moments, 0.0),
        rule=ID,
        title=f"{percent(share)} of the work is recomputation for activation checkpointing",
        assumption="nothing is recomputed, and memory suffices for the activations",
        evidence=(
            Evidence("recomputed per step", recomputed_ns, "ns"),
            Evidence("share of the work", share, "share"),
        ),
        advice=(
            "If memory allows, checkpoint fewer layers, or selectively: recompute what is cheap "
            "(activations, normalisation) and keep what is expensive (matrix products, attention)."
        ),
    )
