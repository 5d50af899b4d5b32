"""Full-precision matrix products: FP32 without TF32 or mixed precision.

Measured as the time of matrix products and convolutions on FP32 operands whose kernels run in full
FP32 (the name says so, or shows none of the tensor cores' instructions), on a GPU that has them.
The saving supposes that such a kernel takes half as long in TF32, or in half precision, which is
cautious: their peak is eight times higher and more.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.finding import Finding
from stepscope.advice.matmuls import evidence_of_time, matmuls, window_with_tensor_cores
from stepscope.advice.replayed import replayed_finding
from stepscope.advice.subject import Subject
from stepscope.analysis.what_if import unchanged

ID = "full-precision-matmuls"
FIRST_WITH_TF32 = 8
FACTOR = 0.5


def find(subject: Subject) -> list[Finding]:
    """The finding, if such kernels take a notable part of the step."""
    judged = window_with_tensor_cores(subject)
    if judged is None:
        return []
    window, major = judged
    rows = matmuls(window)
    is_float = pl.col("type") == "float"
    unknown = pl.col("type").is_null()
    full = rows.filter(
        (is_float & ~pl.col("uses_tensor_cores")) | (unknown & pl.col("is_full_precision"))
    )
    total_ns = int(full["dur_ns"].sum())
    if window.share(total_ns) < subject.thresholds.matmul_share:
        return []
    has_tf32 = major >= FIRST_WITH_TF32
    allow = (
        "Allow TF32 (torch.set_float32_matmul_precision('high'), "
        "torch.backends.cudnn.allow_tf32 = True), or train in BF16 (torch.autocast)."
    )
    mixed = "Train in mixed precision: torch.autocast('cuda', torch.float16) with a GradScaler."
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph).scale_work(window.nodes(full), FACTOR),
        rule=ID,
        title="matrix products run in full FP32" + (", with TF32 off" if has_tf32 else ""),
        assumption=f"in {'TF32' if has_tf32 else 'FP16'} these kernels take half the time",
        evidence=evidence_of_time(window, full, rows),
        advice=allow if has_tf32 else mixed,
    )
