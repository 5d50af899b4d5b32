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

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import polars as pl

from stepscope.analysis.calls.kernel_origins import operator_names, runs_under
from stepscope.analysis.calls.operands_of_work import operands_of_work
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.model import Trace

_PRODUCTS = ("aten::bmm", "aten::baddbmm", "aten::baddbmm_")
_BARRIERS = ("gemm", "convolution", "attention")
_MOST_BETWEEN = 16
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


def find_unfused_attention(trace: Trace, work: pl.DataFrame) -> UnfusedAttention:
    """Find it.

    Args:
        trace: The trace.
        work: GPU work with kind, group, lane_id, start_ns, dur_ns and op, in any order.
    """
    nothing = np.zeros(len(work), np.bool_)
    if not (work["group"] == "softmax").any():
        return UnfusedAttention(nothing, nothing.copy(), None, is_math_fallback=False)
    rows = (
        work.select("kind", "group", "lane_id", "start_ns", "dur_ns", "op")
        .with_row_index("row")
        .with_columns(operator=operator_names(trace, work))
        .filter(pl.col("kind").is_in(["compute", "communication"]))
        .sort("lane_id", "start_ns")
    )
    is_softmax = filled(rows["group"] == "softmax", value=False)
    if not is_softmax.any():
        return UnfusedAttention(nothing, nothing.copy(), None, is_math_fallback=False)
    group, kind = pl.col("group"), pl.col("kind")
    is_barrier = (
        rows.select(group.is_in(_BARRIERS).fill_null(value=False) | (kind == "communication"))
        .to_series()
        .to_numpy()
    )
    is_product = (
        rows.select((group == "gemm") & pl.col("operator").is_in(_PRODUCTS))
        .to_series()
        .fill_null(value=False)
        .to_numpy()
    )
    lane = rows["lane_id"].to_numpy()
    index = np.arange(len(rows))
    before = np.maximum.accumulate(np.where(is_barrier, index, -1))
    after = np.minimum.accumulate(np.where(is_barrier, index, len(rows))[::-1])[::-1]
    last = len(rows) - 1
    first, second = np.maximum(before, 0), np.minimum(after, last)
    enclosed = (before >= 0) & (after <= last) & ~is_barrier
    enclosed &= is_product[first] & is_product[second]
    enclosed &= (lane[first] == lane) & (lane[second] == lane)
    enclosed &= after - before - 1 <= _MOST_BETWEEN
    blocks = np.unique(before[enclosed & is_softmax])
    enclosed &= np.isin(before, blocks)
    if not len(blocks):
        return UnfusedAttention(nothing, nothing.copy(), None, is_math_fallback=False)
    scores = _shapes(trace, rows.filter(pl.Series(enclosed & is_softmax)))
    enclosed &= _is_large(trace, rows, enclosed, is_softmax, before)
    products = np.zeros(len(rows), np.bool_)
    products[blocks] = True
    products[after[blocks + 1]] = True
    found_products, found_between = nothing.copy(), nothing.copy()
    order = rows["row"].to_numpy()
    found_products[order[products]] = True
    found_between[order[enclosed]] = True
    inside = rows.filter(pl.Series(enclosed))
    in_math = runs_under(trace, inside, _MATH)
    is_math = 2 * int(inside["dur_ns"].to_numpy()[in_math].sum()) > int(inside["dur_ns"].sum())
    return UnfusedAttention(found_products, found_between, scores, is_math_fallback=is_math)


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


def _is_large(
    trace: Trace, rows: pl.DataFrame, enclosed: BoolArray, is_softmax: BoolArray, block: Any
) -> BoolArray:
    """Whether each kernel works on operands of the size of its block's scores, or of no known."""
    chosen = np.nonzero(enclosed)[0]
    dims = operands_of_work(trace, rows["op"][chosen])["dims"]
    sizes = np.full(len(rows), -1, np.int64)
    known: dict[str | None, int] = {None: -1}
    for position, text in zip(chosen, dims, strict=True):
        if text not in known:
            shapes = _tensor_shapes(text)
            known[text] = max((math.prod(shape) for shape in shapes), default=-1)
        sizes[position] = known[text]
    scores = np.full(len(rows) + 1, -1, np.int64)
    of_softmax = np.nonzero(enclosed & is_softmax)[0]
    np.maximum.at(scores, block[of_softmax], sizes[of_softmax])
    large: BoolArray = (sizes < 0) | (2 * sizes >= scores[block])
    return large


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
