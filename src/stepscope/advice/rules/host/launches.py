"""Rules about launches: too many, too short, or waited for."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.evidence.compiled_code import (
    graphs_to_launch,
    has_fused_optimizer,
    rows_of_notable_patterns,
    runs_compiled_code,
    runs_graphs,
    what_is_left_out,
)
from stepscope.advice.evidence.locations import waiting_sites
from stepscope.advice.evidence.replayed import host_alone_of, replayed_finding
from stepscope.advice.evidence.specific_causes import IDLE_LABEL
from stepscope.advice.evidence.subject import Subject, about_gpu_work
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, short
from stepscope.advice.rules.copies import pageable_copies
from stepscope.analysis.calls.call_sites import is_of_product
from stepscope.analysis.calls.runtime_calls import (
    GraphPlace,
    graph_places,
    harness_synchronisations,
)
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.run.figures import percent
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Int64Array, Intervals
from stepscope.trace.arrays.nullable import are_among

_SLOWS = "recording slows dispatch"


@about_gpu_work
def find_launch_bound(subject: Subject, window: WindowView) -> list[Finding]:
    """Launch-bound: the host cannot launch work as fast as the GPU does it.

    A rate of launches, so it takes many of them: one slow call, even in every step, is none.
    One-off calls are left out.

    Measured as the share of the device's time in which it is idle because the next launch comes
    late, while the host dispatches operators and calls the runtime. Where something else of the
    host makes the GPU wait, such as Python, faster launches shorten the step all the same, if the
    host limits it: if it needs most of the step for itself, waits apart. The saving assumes that
    dispatch and launches cost nothing, as if the step were one CUDA graph; waiting for input or for
    the device, and Python outside operators, stay. It may exceed that idle time: a host that is
    ahead also hides Python and lets communication overlap. It never exceeds the host's time in
    dispatch and launches.
    """
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
        changes,
        rule="launch-bound",
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
            f"Reduce the number of launches: {graphs_to_launch(window)}, fused "
            f"{_optimizers(window)}operators, or more work per launch (a larger batch)."
            f"{what_is_left_out(window)}"
        ),
    )


def _optimizers(window: WindowView) -> str:
    return "" if has_fused_optimizer(window) else "optimizers and "


def _launches(window: WindowView) -> int:
    launch = window.work["launch"]
    known = int(are_among(launch, window.trace.event_count).sum())
    return known + int(launch.has_nulls())  # what has no known launch counts once


def _time_per_launch(window: WindowView, lane: int, mine: Intervals) -> Int64Array:
    """How much dispatch and launching precedes each launch of a thread, itself included."""
    events = np.flatnonzero(are_among(window.work["launch"], window.trace.event_count))
    columns = window.trace.columns("lane_id", "start_ns", "dur_ns")
    events = events[columns["lane_id"].to_numpy()[events] == lane]
    ends = columns["start_ns"].to_numpy()[events] + columns["dur_ns"].to_numpy()[events]
    ends.sort(kind="stable")
    starts = np.concatenate(([window.window[0]], ends[:-1]))[: len(ends)]
    return intervals.covered(mine, np.minimum(starts, ends), ends)


@about_gpu_work
def find_many_small_kernels(subject: Subject, window: WindowView) -> list[Finding]:
    """Many small kernels: most kernels are so short that starting them is much of their cost.

    Measured over the computing kernels shorter than 10 µs, without those of matrix products,
    convolutions and attention, which nothing fuses with each other, and those of notable known
    patterns, which have findings of their own (`fusible-pattern`). The saving assumes that fusing
    does away with every second of them: half of their device time, and half of what their operators
    take on the host. Kernels of a captured graph share one launch: of these only the device time.
    """
    limits = subject.thresholds
    columns = ["node", "dur_ns", "name", "launch", "op", "start_ns"]
    can_be_fused = window.work["kind"] == "compute"
    can_be_fused &= ~pl.Series(is_of_product(window.trace, window.work))
    is_small = can_be_fused & (window.work["dur_ns"] < limits.small_kernel_ns)
    is_small &= pl.Series(~rows_of_notable_patterns(window, limits.saving_low))
    small = window.work.select(columns).filter(is_small)
    per_step = len(small) / window.steps
    share = len(small) / max(1, int(can_be_fused.sum()))
    if per_step < limits.small_kernel_count or share < limits.small_kernel_share:
        return []
    alone = small.filter(pl.Series(graph_places(window.trace, small) == GraphPlace.NONE))
    changes = (
        unchanged(window.graph)
        .scale_work(window.nodes(small), 0.5)
        .scale_host(window.spans_of_sources(alone), 0.5)
    )
    top = small.group_by("name").len().sort("len", "name", descending=[True, False])
    return replayed_finding(
        subject,
        changes,
        rule="many-small-kernels",
        title=(
            f"{percent(share)} of the kernels that could be fused are shorter than "
            f"{limits.small_kernel_ns // 1000} µs"
        ),
        assumption="fusing halves their number, on the GPU and on the host",
        evidence=(
            Evidence("small kernels per step", per_step, "count"),
            Evidence("share of those that could be fused", share, "share"),
            Evidence(
                "their device time per step",
                window.per_device_step(int(small["dur_ns"].sum())),
                "ns",
            ),
            Evidence("most often", short(top["name"][0]), "text"),
        ),
        advice=(
            f"Fuse them: {'' if runs_compiled_code(window) else 'torch.compile, '}fused "
            f"{_optimizers(window)}normalisations, foreach functions; or capture "
            f"{'more of ' if runs_graphs(window) else ''}the step in a CUDA graph; or give each "
            f"kernel more work with a larger batch.{what_is_left_out(window)}"
        ),
    )


@about_gpu_work
def find_synchronisation(subject: Subject, window: WindowView) -> list[Finding]:
    """Synchronisation: blocking calls make the host wait for the GPU, and then has to catch up.

    Measured as the time in calls that block until the device has caught up
    (`cudaStreamSynchronize`, `cudaDeviceSynchronize`, copies to the host). The wait itself may cost
    nothing where the GPU is the bottleneck; the saving is what the replay finds when these calls
    return at once.
    """
    calls = _blocking_calls(window)
    waited_ns = window.waits_of(calls).total_ns
    if window.share(waited_ns) < subject.thresholds.synchronisation_wait:
        return []
    evidence = [
        Evidence("blocking calls per step", len(calls) / window.steps, "count"),
        Evidence("time in them per step", window.per_step(waited_ns), "ns"),
    ]
    evidence += [Evidence("at", place, "text") for place in waiting_sites(window, calls)]
    return replayed_finding(
        subject,
        window.without_waiting_in(calls),
        rule="synchronisation",
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
