"""Synchronisation: blocking calls make the host wait for the GPU, and then has to catch up.

Measured as the time in calls that block until the device has caught up (`cudaStreamSynchronize`,
`cudaDeviceSynchronize`, copies to the host). The wait itself may cost nothing where the GPU is the
bottleneck; the saving is what the replay finds when these calls return at once.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.places import waiting_places
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding
from stepscope.advice.rules.copies.pageable_copies import pageable_copies
from stepscope.analysis.calls.edges_of_recording import harness_synchronisations
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.replay import unchanged
from stepscope.trace.arrays.nullable import are_among

ID = "synchronisation"


def find(subject: Subject) -> list[Finding]:
    """The finding, if blocking calls take a notable time and the step is shorter without them."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    calls = _blocking_calls(window)
    waited_ns = window.waits_of(calls).total_ns
    if window.share(waited_ns) < subject.thresholds.synchronisation_wait:
        return []
    graph = window.graph
    changes = (
        unchanged(graph)
        .drop_waits_of_calls(calls["event"].to_numpy())
        .scale_host(window.spans(calls))
    )
    evidence = [
        Evidence("blocking calls per step", len(calls) / window.steps, "count"),
        Evidence("time in them per step", window.per_step(waited_ns), "ns"),
    ]
    evidence += [Evidence("at", place, "text") for place in waiting_places(window, calls)]
    return replayed_finding(
        subject,
        window,
        changes,
        rule=ID,
        title="blocking calls make the host wait for the GPU",
        assumption="these calls return at once and nothing in the step needs their results",
        evidence=tuple(evidence),
        advice=(
            "Keep results on the GPU: read losses and metrics (.item(), .cpu(), print, if on a "
            "tensor, nonzero) only every N steps, and drop torch.cuda.synchronize()."
        ),
    )


def _blocking_calls(window: WindowView) -> pl.DataFrame:
    """Synchronising calls and copies to the host that waited.

    Copies of input are another rule's, and calls of the profiling harness at the edges of the
    recording no step's.
    """
    graph = window.graph
    waiting = graph.call[graph.edge_kind == EdgeKind.SYNC]
    # One look at a table takes all others out first: most calls wait for nothing.
    waits = are_among(pl.Series(waiting[waiting >= 0]), window.trace.event_count)
    calls = window.calls.filter(pl.Series(waits[window.calls["event"].to_numpy()]))
    if calls.is_empty():
        return calls
    pageable = pageable_copies(window)
    op_of_pageable = pageable["op"].drop_nulls().unique()
    return calls.filter(
        ~pl.col("event").is_in(harness_synchronisations(window.trace).implode())
        & (pl.col("group") != "allocation")
        & ~pl.col("event").is_in(pageable["launch"].implode())
        # A pageable copy is followed by a synchronisation of its own, in the same operator.
        & ~pl.col("op").is_in(op_of_pageable.implode()).fill_null(value=False)
    )
