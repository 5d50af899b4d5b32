"""Rules about communication that the GPU does not hide behind computing."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from stepscope.advice.evidence.collectives import (
    LATE_RANKS_FIRST,
    point_to_point,
    undisturbed,
    without_point_to_point,
)
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, about_gpu_work
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, seen, speed
from stepscope.analysis.calls.operands import plain_type
from stepscope.analysis.communication import analyse_communication
from stepscope.analysis.graph.kinds import EdgeKind, NodeKind
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.graph.step_graph import ORIGIN
from stepscope.analysis.host.causes import HostCause
from stepscope.run.figures import binary_size, percent
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.arrays.ordering import by_group_and_time
from stepscope.trace.schema import Kind

_ADVICE_ON_EXCHANGES = (
    "Start each exchange before the computation that does not need its data, and wait for it after "
    "that: in a ring, send and receive the next block while this one is worked on. Or send less. "
    "If an exchange takes far longer than the link needs for its data, compare the ranks: one that "
    "always comes late makes each exchange of its neighbours longer."
)
_OF_EXCHANGES = "; sends and receives need as long as the shortest, which may include waiting"
_HALF = ("bfloat16", "half", "float16")


def find_exposed_communication(subject: Subject) -> list[Finding]:
    """Exposed communication: the GPU communicates without computing at the same time.

    Measured as the part of the device's time in collectives with no concurrent computation. The
    saving assumes that computation hides all communication, which is the most that overlap, less
    data or a faster network can achieve. What sends and receives wait for other ranks belongs to
    `pipeline-bubble`; what they need to move data counts here. Abnormal collectives and known waits
    for late ranks have other causes and other remedies: they are assumed to be fixed first, and are
    not part of this saving.

    Without GPU work, measured as the time in which the training thread waits for collectives that a
    thread of the backend (gloo) runs.
    """
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
        unchanged(graph).scale_work(communicates, 0.0).shorten_work(without_transfer),
        rule="exposed-communication",
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
            *seen(
                "of this, waiting in sends and receives, per step",
                window.per_device_step(exchanges.exposed_wait_ns),
                "ns",
            ),
            Evidence("hidden behind computation", hidden, "share"),
            *seen("collectives per step", int(np.sum(communicates)) / window.steps, "count"),
            *seen(
                "sends and receives per step", len(exchanges.collectives) / window.steps, "count"
            ),
            *_bandwidth(most),
        ),
        advice=_advice(most) if communicates.any() else _ADVICE_ON_EXCHANGES,
    )


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
        unchanged(graph).scale_host(waits, 0.0, lanes=(graph.main_lane,)),
        rule="exposed-communication",
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


@about_gpu_work
def find_poor_overlap(subject: Subject, window: WindowView) -> list[Finding]:
    """Poor overlap: communication could run beside computation, which waits for it instead.

    Measured as the share of communication that is hidden behind computation. The saving assumes
    that computation no longer waits for collectives within a step: only the last work of a step
    does. Known waits for late ranks and abnormal collectives have other causes and other remedies:
    they are assumed to be fixed first, and are not part of this saving.
    """
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
        calm.and_also(unchanged(window.graph).drop_edges(waits)),
        rule="poor-overlap",
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
    source = np.maximum(graph.source, ORIGIN)
    target = np.repeat(np.arange(len(graph)), np.diff(graph.first_edge))
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
    text = "hardly any" if share == "0%" else f"only {share}"
    return f"{text} of the communication overlaps with computation"


_OTHER_WORK = 2
"""Pieces of other GPU work between two collectives of a row, at most."""
_LEAST_ROW = 10
_SHORT_NS = 200_000
"""Median of a row up to which it is the number of collectives that costs, not their bytes."""
_BUCKETED = 0.05
_ADVICE = (
    "Send many tensors at once: DistributedDataParallel instead of a loop over parameters, one "
    "flat buffer of all gradients, or larger buckets (DeepSpeed, Megatron)."
)


@about_gpu_work
def find_many_small_collectives(subject: Subject, window: WindowView) -> list[Finding]:
    """Many small collectives: tensors are sent one by one instead of in buckets.

    Measured as collectives of one kind that are launched one right after the other: between two of
    them lie at most two pieces of other GPU work, such as the copies before and after. Only rows of
    at least ten count whose median collective is short. Collectives between the layers of a model,
    as of tensor parallelism, have more work between them and do not count. The saving assumes that
    a few large collectives take as long on the GPU as the small ones together, and a twentieth of
    the host's time.
    """
    if not (window.work["kind"] == Kind.COMMUNICATION.value).any():
        return []
    small = _in_rows(window)
    per_step = len(small) / window.steps
    if per_step < subject.thresholds.small_collectives:
        return []
    spans = window.trace.columns("start_ns", "lane_id")[small["launch"]]
    ends = small.with_columns(called_ns=spans["start_ns"], thread=spans["lane_id"])
    rows = ends.group_by("row").agg(pl.col("called_ns").min(), last_ns=pl.col("called_ns").max())
    host = window.spans(rows.select(start_ns="called_ns", end_ns="last_ns"))
    threads = tuple(ends["thread"].unique().sort().to_list())
    kind = small["group"].mode().sort()[0]
    mean_ns = round(float(small["dur_ns"].to_numpy().mean()))
    return replayed_finding(
        subject,
        unchanged(window.graph).scale_host(host, _BUCKETED, lanes=threads),
        rule="many-small-collectives",
        about_collectives=True,
        title=f"{per_step:.0f} small collectives per step, one after the other",
        assumption="in a few large ones they take the same time on the GPU and a twentieth of the "
        "host's",
        evidence=(
            Evidence("small collectives in a row, per step", per_step, "count"),
            Evidence("mostly", kind, "text"),
            Evidence("mean length on the GPU", mean_ns, "ns"),
            Evidence("host time from the first to the last, per step",
                     window.per_step(host.total_ns), "ns"),
        ),
        advice=_ADVICE,
    )  # fmt: skip


def _in_rows(window: WindowView) -> pl.DataFrame:
    """Collectives of `window.work` in rows of short ones, with the number of their `row`."""
    columns = ["device", "group", "step", "launch", "dur_ns", "start_ns", "kind"]
    exchanges = pl.Series(point_to_point(window).is_one[window.work["node"].to_numpy()])
    launched = window.work.select(columns).filter(~exchanges).drop_nulls("launch")
    communicates = filled(launched["kind"] == Kind.COMMUNICATION.value, value=False)
    # The place of each collective among all work, sorted as a table would take far longer.
    called_ns = window.trace.columns("start_ns")["start_ns"].to_numpy()[launched["launch"]]
    device = filled(launched["device"], -1)
    order = by_group_and_time(device, called_ns, launched["start_ns"].to_numpy())
    place = np.flatnonzero(communicates[order])
    ordered = launched[order[place]].with_columns(place=pl.Series(place))
    follows = (
        (pl.col("place").diff() <= _OTHER_WORK + 1)
        & (pl.col("group") == pl.col("group").shift())
        & (pl.col("device") == pl.col("device").shift())
        & (pl.col("step") == pl.col("step").shift())
    )
    rows = ordered.with_columns(row=(~follows.fill_null(value=False)).cum_sum())
    return rows.filter(
        pl.len().over("row") >= _LEAST_ROW, pl.col("dur_ns").median().over("row") <= _SHORT_NS
    )
