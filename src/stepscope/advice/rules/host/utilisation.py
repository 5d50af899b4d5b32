"""Rules about GPUs that do little, or nothing, and about what CPUs compute instead."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from stepscope.advice.evidence.believable import loss_of
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, about_gpu_work, plain_finding
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity, seen
from stepscope.analysis.calls.allocations import memory_peaks
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.operators import analyse_operators
from stepscope.analysis.selection.names import is_call, names_that
from stepscope.analysis.selection.partition import BUSY_PARTS, IDLE_LABELS, ONE_OFF, cause_label
from stepscope.run.figures import duration, percent
from stepscope.trace.arrays import intervals
from stepscope.trace.classify import DRAWS, MATRIX_GROUPS
from stepscope.trace.schema import Category

_OF_THE_REST = frozenset(
    {
        "tensor-cores-unused",
        "full-precision-matmuls",
        "unfused-attention",
        "slow-matmuls",
        "unfused-elementwise",
        "layout-copies",
        "heavy-recomputation",
        "memory-far-below-limit",
        "memory-near-limit",
    }
)
"""Findings about what the device does while it works, and about its memory."""
_ADVICE = {
    "op_dispatch": "Look at `stepscope show launches`: which calls and operators take the time.",
    "not_recorded": "Record with stacks to see what the host does there.",
    "backward": "Record with stacks to see what the host does between the operators of backward.",
    "python": "Look at the longest gaps (`stepscope show idle`) and the Python functions in them.",
    "device_wait": "Look at which streams wait for which (`stepscope show idle`).",
}


def is_explained(finding: Finding, others: Sequence[Finding]) -> bool:
    """Whether another finding of the same rank says why the device is idle."""
    return any(
        one.id not in ("low-gpu-utilisation", *_OF_THE_REST)
        and (one.saving_ns is not None or one.severity.is_weighty)
        for one in others
        if one.rank == finding.rank
    )


@about_gpu_work
def find_low_gpu_utilisation(subject: Subject, window: WindowView) -> list[Finding]:
    """Low GPU utilisation: kernels run less than half of the time; no other finding says why.

    Measured as the device's time in which any kernel runs, without what one-off calls kept it idle.
    The cause named is the largest part of the rest in the breakdown of the step. Where another
    finding explains why the device is idle, that one says more, and this one is left out
    (`is_explained`).
    """
    if loss_of(window).leaves_nothing:
        return []
    runs = window.work["kind"].is_in(["compute", "communication"])
    spans = window.work["device", "start_ns", "end_ns"].filter(runs)
    busy = _busy_share(window, spans)
    if busy is None or busy >= subject.thresholds.gpu_utilisation:
        return []
    parts = {cause: window.idle.of(cause) for cause in IDLE_LABELS if cause != ONE_OFF}
    largest = max(parts, key=lambda cause: parts[cause])
    cause, largest_ns = cause_label(largest), parts[largest]
    if window.timeline.exposed_memcpy_ns > largest_ns:
        largest, cause, largest_ns = "", BUSY_PARTS[2], window.timeline.exposed_memcpy_ns
    advice = _ADVICE.get(largest, "")
    return plain_finding(
        subject,
        rule="low-gpu-utilisation",
        title=f"kernels run {percent(busy)} of the time; most of the rest is {cause}",
        severity=Severity.HIGH
        if busy < subject.thresholds.gpu_utilisation / 2
        else Severity.MEDIUM,
        reason="no single cause was found whose removal could be replayed",
        evidence=(
            Evidence("time in which kernels run", busy, "share"),
            Evidence(cause, window.device_share(largest_ns), "share"),
        ),
        advice=f"{advice} More work per step (a larger batch) fills the GPU better.".strip(),
    )


def _busy_share(window: WindowView, spans: pl.DataFrame) -> float | None:
    """Time in which kernels run, as a share of the devices' time; None: there is no time."""
    line, busy_ns = window.timeline, 0
    for (device,), rows in spans.partition_by("device", as_dict=True).items():
        busy = intervals.merge(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        # A damaged file may have work that tells no device.
        steps = line.steps.filter(pl.col("device").eq_missing(pl.lit(device)))
        if len(steps):
            # Device steps follow one another without gaps.
            start = int(steps["start_ns"][0])
            busy = intervals.clip(busy, start, start + int(steps["total_ns"].sum()))
        busy_ns += busy.total_ns
    return busy_ns / window.device_ns if window.device_ns else None


_ONLY_ON_CPUS = r"mkldnn|onednn|_mkl_|_for_cpu$|slow_conv|thnn_conv"
_ONLY_ON_GPUS = r"^aten::(cudnn|_cudnn|miopen|_flash_attention_f|_efficient_attention_f|_cslt)"
_TOO_LONG_TO_LAUNCH_NS = 1_000_000
_MOSTLY = 0.5


def find_gpu_unused(subject: Subject) -> list[Finding]:
    """GPU unused: the machine has a GPU, and nothing was ever launched on it.

    Measured on a recording without any GPU work and without any call that launches it, on a machine
    whose GPUs the trace (`deviceProperties`) or the run's description names. That the model ran on
    the CPU is certain where its operators have variants that only CPUs have
    (`aten::mkldnn_convolution`), or where matrix products take most of the operators' time and at
    least a millisecond each: to launch one takes some ten microseconds. Where neither shows, the
    recording may have left the GPU out (`activities=[ProfilerActivity.CPU]`), and the finding says
    so. Operators that only GPUs have, or memory allocated on one, show that it did: then there is
    no finding.
    """
    window = subject.window
    if window is None or window.has_gpu:
        return []
    names = [name for name in window.trace.devices["name"].to_list() if name]
    devices = names or list(subject.job_devices)
    if not devices or _uses_a_gpu(window):
        return []
    table = analyse_operators(window.trace, window.scope).table
    table = table.filter(pl.col("category") == Category.CPU_OP.value)
    total_ns = int(table["host_self_ns"].sum())
    products = table.filter(pl.col("group").is_in(MATRIX_GROUPS), pl.col("host_self_ns") > 0)
    if not total_ns or products.is_empty():
        return []
    share = int(products["host_self_ns"].sum()) / total_ns
    longest = products.sort("host_self_ns", "name", descending=[True, False])
    mean_ns = longest["host_self_ns"][0] / longest["count"][0]
    of_cpus = table.filter(pl.col("name").str.contains(_ONLY_ON_CPUS))
    is_certain = len(of_cpus) > 0 or (share >= _MOSTLY and mean_ns >= _TOO_LONG_TO_LAUNCH_NS)
    evidence = (
        Evidence("GPUs", f"{len(devices)} × {devices[0]}", "text"),
        Evidence("calls that launch work", 0, "count"),
        Evidence("matrix products' share of the operators' time", share, "share"),
        Evidence(f"mean {longest['name'][0]}", round(mean_ns), "ns"),
        *seen("operator that only CPUs have", next(iter(of_cpus["name"]), None), "text"),
    )
    if is_certain:
        title, severity = "the model ran on the CPU, although the machine has a GPU", Severity.HIGH
        advice = _MOVE
    else:
        title = "nothing was launched on the machine's GPU, or the recording left it out"
        severity, advice = Severity.MEDIUM, f"{_RECORD} {_MOVE}"
    return plain_finding(
        subject,
        rule="gpu-unused",
        title=title,
        severity=severity,
        reason=f"the CPU spends {percent(share)} of the operators' time in matrix products; how "
        "long the GPU would take is not measured",
        evidence=evidence,
        advice=advice,
    )


_MOVE = (
    "Move the model and each batch to the GPU (model.to('cuda'), batch.to('cuda', "
    "non_blocking=True)). If that was meant to happen, see whether torch.cuda.is_available() is "
    "true in this process: a build of torch without CUDA, an empty CUDA_VISIBLE_DEVICES or an old "
    "driver make it false."
)
_RECORD = (
    "Record with ProfilerActivity.CUDA beside ProfilerActivity.CPU. If the model was not on the "
    "GPU:"
)


def _uses_a_gpu(window: WindowView) -> bool:
    """Whether the trace shows use of a GPU that was not recorded."""
    trace = window.trace
    name = pl.col("name")
    launches = is_call() & pl.col("group").is_in(["launch", "copy_call", "fill_call", "graph"])
    is_operator = pl.col("category").cast(pl.String) == Category.CPU_OP.value
    shown = launches | (is_operator & name.str.contains(_ONLY_ON_GPUS))
    return bool(names_that(trace, shown).any()) or len(memory_peaks(window.trace)) > 0


@about_gpu_work
def find_cpu_operators(subject: Subject, window: WindowView) -> list[Finding]:
    """Operators on the CPU: operators of a GPU training that compute on the CPU hold up the step.

    Measured as the moments of threads that feed the GPU in operators of half a millisecond or more
    that launch nothing (`host.causes`). The saving assumes that they take no time: the GPU does
    such work beside its other work, or another process did it before. What copies of their results
    to the GPU take stays.
    """
    graph = window.graph
    moments = graph.host.of(HostCause.CPU_OPERATOR)
    spent = intervals.clip(moments, *window.window)
    if window.share(spent.total_ns) < subject.thresholds.saving_low:
        return []
    rows = graph.host.table.filter(pl.col("cause") == int(HostCause.CPU_OPERATOR))
    rows = rows.filter(pl.Series(intervals.contains(spent, rows["start_ns"])))
    taken = rows.select(
        name=window.names_of(rows["event"]), taken_ns=pl.col("end_ns") - pl.col("start_ns")
    )
    by_name = taken.group_by("name").sum().sort("taken_ns", "name", descending=[True, False])
    names, longest = by_name["name"].head(3).to_list(), int(spent.lengths.argmax())
    place = window.frame_over(int(spent.starts[longest]), int(spent.ends[longest]))
    first_ns = duration(window.per_step(int(by_name["taken_ns"][0])))
    draws = bool(by_name["name"].str.contains(DRAWS).any())
    return replayed_finding(
        subject,
        unchanged(graph).scale_host(moments),
        rule="cpu-operators",
        title=f"operators compute on the CPU: {names[0]} takes {first_ns} of each step",
        assumption="what they compute is there when it is needed, and costs the step nothing",
        evidence=(
            Evidence("operators on the CPU per step", window.per_step(spent.total_ns), "ns"),
            Evidence("calls per step", len(rows) / window.steps, "count"),
            Evidence("operators", ", ".join(names), "text"),
            *seen("the longest is in", place, "text"),
        ),
        advice=f"{_DRAW_THERE if draws else ''}{_COMPUTE_THERE}",
    )


_DRAW_THERE = "Draw random numbers on the GPU (torch.randn(..., device='cuda')). "
_COMPUTE_THERE = (
    "Make tensors on the GPU (device='cuda' where they are made), and copy data there before it is "
    "converted, normalised or augmented; what must stay on the CPU, do in DataLoader workers, less "
    "often, or after the step's work was launched."
)
