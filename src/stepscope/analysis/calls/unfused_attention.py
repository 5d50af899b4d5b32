"""Attention that runs as separate kernels: a batched product, a softmax, another batched product.

Definition
    On one stream, a softmax between two batched matrix products (`aten::bmm`, `aten::baddbmm`)
    with no other product, convolution, fused attention or collective between them is attention.
    The backward has the same form around its softmax. What lies between the two products works on
    the scores, a matrix of queries by keys: scaling, masking, the softmax, dropout, conversions.
    Where shapes were recorded, an operator between them counts only if one of its operands is at
    least half as large as the scores. A fused kernel never writes the scores to memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import orjson
import polars as pl

from stepscope.analysis.calls.fusible import ATTENTION, Fusible
from stepscope.analysis.calls.kernel_origins import runs_under
from stepscope.analysis.calls.operands_of_work import operands_of_work
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.model import Trace

_MATH = r"^aten::_scaled_dot_product_attention_math"


@dataclass(frozen=True, eq=False)
class UnfusedAttention:
    """The attention among some GPU work that runs as separate kernels.

    Attributes:
        products: For each row whether it is one of the batched products.
        between: For each row whether it works on the scores between them.
        scores: Shape of the scores that take the most time, such as (8, 12, 3137, 3137); None
            where shapes were not recorded.
        is_math_fallback: Whether most of it runs inside `scaled_dot_product_attention`, which fell
            back to plain operators.
    """

    products: BoolArray
    between: BoolArray
    scores: tuple[int, ...] | None
    is_math_fallback: bool


def unfused_attention(trace: Trace, work: pl.DataFrame, fusible: Fusible) -> UnfusedAttention:
    """It among some GPU work.

    Args:
        work: GPU work with group, dur_ns and op.
    """
    between = fusible.are_of(ATTENTION)
    products = fusible.rows["is_product"].to_numpy()
    inside = work.filter(pl.Series(between))
    in_math = runs_under(trace, inside, _MATH) if len(inside) else np.zeros(0, np.bool_)
    math_ns = int(inside["dur_ns"].to_numpy()[in_math].sum())
    return UnfusedAttention(
        products,
        between,
        _shapes(trace, inside.filter(pl.col("group") == "softmax")),
        is_math_fallback=2 * math_ns > int(inside["dur_ns"].sum()),
    )


def _shapes(trace: Trace, softmax: pl.DataFrame) -> tuple[int, ...] | None:
    """The shape of the scores that take the most time."""
    table = (
        softmax.select("op", "dur_ns")
        .with_columns(dims=operands_of_work(trace, softmax["op"])["dims"])
        .drop_nulls("dims")
        .group_by("dims")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "dims", descending=[True, False])
    )
    for dims in table["dims"]:
        shapes = _tensor_shapes(dims)
        if shapes and len(shapes[0]) >= 2:
            return shapes[0]
    return None


def _tensor_shapes(dims: str | None) -> list[tuple[int, ...]]:
    """Shapes of the operands that are tensors."""
    try:
        parsed = orjson.loads(dims or "[]")
    except orjson.JSONDecodeError:
        return []
    return [
        tuple(shape)
        for shape in parsed
        if isinstance(shape, list) and shape and all(isinstance(side, int) for side in shape)
    ]
