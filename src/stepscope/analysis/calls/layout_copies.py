"""Kernels that only change how a tensor lies in memory.

Definition
    A kernel is a layout copy if its name says so (cuDNN's `nchwToNhwc`, MIOpen's
    `batched_transpose`), or if it copies (`direct_copy_kernel`) for `contiguous`, `clone`,
    `reshape` or `flatten`, without a conversion of types. Copies by the copy engine ("Memcpy
    DtoD") are no kernels and are counted as copies.
"""

from __future__ import annotations

import polars as pl

from stepscope.analysis.calls.kernel_origins import runs_under
from stepscope.analysis.selection.names import by_distinct_name
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.model import Trace

OF_CONVOLUTIONS = (
    r"(?i)n(chw|hwc)ToN(chw|hwc)|^batched_transpose|transpose_(nchw|nhwc|cnhw)|_(NCHW|CNHW|NHWC)2"
)
_COPIES = r"direct_copy_kernel"
_FOR_LAYOUT = r"^aten::(contiguous|clone|reshape|_reshape_copy|flatten)$"
_CONVERSIONS = r"^aten::(to|_to_copy|type_as|float|half|bfloat16)$"


def are_layout_copies(trace: Trace, work: pl.DataFrame) -> BoolArray:
    """For each row whether it is one.

    Args:
        work: GPU work with kind, name_id, name and op.
    """
    computes = (work["kind"] == "compute").to_numpy()

    def has(pattern: str) -> BoolArray:
        matches = pl.col("name").str.contains(pattern).fill_null(value=False)
        found: BoolArray = by_distinct_name(work, matches).to_numpy()
        return found

    by_name, copies = has(OF_CONVOLUTIONS), has(_COPIES)
    found: BoolArray = copies & computes
    if found.any():
        found &= runs_under(trace, work, _FOR_LAYOUT) & ~runs_under(trace, work, _CONVERSIONS)
    found |= by_name & computes
    return found
