"""GPU unused: the machine has a GPU, and nothing was ever launched on it.

Measured on a recording without any GPU work and without any call that launches it, on a machine
whose GPUs the trace (`deviceProperties`) or the run's description names. That the model ran on the
CPU is certain where its operators have variants that only CPUs have (`aten::mkldnn_convolution`),
or where matrix products take most of the operators' time and at least a millisecond each: to launch
one takes some ten microseconds. Where neither shows, the recording may have left the GPU out
(`activities=[ProfilerActivity.CPU]`), and the finding says so. Operators that only GPUs have, or
memory allocated on one, show that it did: then there is no finding.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import finding_without_saving
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.analysis.operators import analyse_operators
from stepscope.analysis.selection.names import is_call, names_that
from stepscope.run.figures import percent
from stepscope.trace.classify import MATRIX_GROUPS
from stepscope.trace.schema import Category

ID = "gpu-unused"
_ONLY_ON_CPUS = r"mkldnn|onednn|_mkl_|_for_cpu$|slow_conv|thnn_conv"
_ONLY_ON_GPUS = r"^aten::(cudnn|_cudnn|miopen|_flash_attention_f|_efficient_attention_f|_cslt)"
_TOO_LONG_TO_LAUNCH_NS = 1_000_000
_MOSTLY = 0.5


def find(subject: Subject) -> list[Finding]:
    """The finding, if a GPU is there and no work went to it."""
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
    evidence = [
        Evidence("GPUs", f"{len(devices)} × {devices[0]}", "text"),
        Evidence("calls that launch work", 0, "count"),
        Evidence("matrix products' share of the operators' time", share, "share"),
        Evidence(f"mean {longest['name'][0]}", round(mean_ns), "ns"),
    ]
    if len(of_cpus):
        evidence.append(Evidence("operator that only CPUs have", of_cpus["name"][0], "text"))
    if is_certain:
        title, severity = "the model ran on the CPU, although the machine has a GPU", Severity.HIGH
        advice = _MOVE
    else:
        title = "nothing was launched on the machine's GPU, or the recording left it out"
        severity, advice = Severity.MEDIUM, f"{_RECORD} {_MOVE}"
    return finding_without_saving(
        subject,
        rule=ID,
        title=title,
        severity=severity,
        reason=f"the CPU spends {percent(share)} of the operators' time in matrix products; how "
        "long the GPU would take is not measured",
        evidence=tuple(evidence),
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
    return bool(names_that(trace, shown).any()) or len(window.memory) > 0
