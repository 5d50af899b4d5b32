"""Tensor cores unused: matrix products in half precision run on the ordinary cores.

Measured as the time of matrix products and convolutions whose operands are half precision, while
the kernel's name tells that it does without the tensor cores (AMD: the matrix cores), on a GPU that
has them: NVIDIA from Volta on, AMD from Instinct MI100 on. The saving assumes that such a kernel
takes half as long on them, which is cautious.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.matmuls import evidence_of_time, products_of
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Evidence, Finding, short
from stepscope.analysis.graph.replay import unchanged

ID = "tensor-cores-unused"
FACTOR = 0.5
_NVIDIA = (
    "Make the sizes of matrix products multiples of 8 (pad vocabulary, heads and hidden "
    "size), keep tensors contiguous, and use channels_last for convolutions."
)
_AMD = (
    "Let MIOpen look for its fast kernels (torch.backends.cudnn.benchmark = True, and a warm "
    "find database), use channels_last for convolutions, and sizes that are multiples of 8."
)


def find(subject: Subject) -> list[Finding]:
    """The finding, if such kernels take a notable part of the step."""
    products = products_of(subject)
    if products is None:
        return []
    window, units = products.window, products.units
    idle = products.table.filter(pl.col("type") == "half", pl.col("uses") == "no")
    total_ns = int(idle["dur_ns"].sum())
    if window.device_share(total_ns) < subject.thresholds.matmul_share:
        return []
    cores = "matrix cores" if units.is_amd else "tensor cores"
    top = (
        idle.group_by("name")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "name", descending=[True, False])
    )
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph).scale_work(window.nodes(idle), FACTOR),
        rule=ID,
        title=f"half-precision matrix products do not use the {cores}",
        assumption=f"on the {cores} these kernels take half the time",
        evidence=(
            *evidence_of_time(products, idle),
            Evidence("most of it in", short(top["name"][0]), "text"),
        ),
        advice=_AMD if units.is_amd else _NVIDIA,
    )
