"""The bytes that an operator's kernel moves at least, by the shapes and types of its operands.

Definition
    Each operand is read once and the result is written once. The result of an elementwise operator
    has the shape and type of its largest operand. A reduction writes next to nothing; a copy
    reads its second operand and writes its first; a fill writes its first; a dropout writes a mask
    of one byte per element beside its result. Lists of tensors are recorded without their type:
    what `cat` and `_foreach_` operators move is known in elements only.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

import orjson
import polars as pl

from stepscope.analysis.calls.call_sites import names_of_events
from stepscope.analysis.calls.operands import element_bytes, of_each_way
from stepscope.analysis.calls.operands_of_work import operands_as_categories
from stepscope.trace.model import Trace

STREAMING = (
    r"^aten::(mul|add|sub|div|neg|pow|silu|gelu|relu|sigmoid|tanh|exp|rsqrt|sqrt|copy|where|clamp"
    r"|clamp_min|addcmul|addcdiv|masked_fill|silu_backward|gelu_backward|threshold_backward)_?$"
)
"""Elementwise operators: they read their operands and write a result as large as the largest."""
_IS_STREAMING = re.compile(STREAMING)
_LIKE_STREAMING = re.compile(
    r"^aten::(native_layer_norm|native_group_norm|native_batch_norm|cudnn_batch_norm"
    r"|miopen_batch_norm|_fused_rms_norm|_softmax|_log_softmax|_softmax_backward_data"
    r"|_log_softmax_backward_data|_safe_softmax|native_dropout|native_dropout_backward"
    r"|native_layer_norm_backward|native_group_norm_backward|native_batch_norm_backward"
    r"|cudnn_batch_norm_backward|miopen_batch_norm_backward|_fused_rms_norm_backward"
    r"|leaky_relu|hardtanh|hardswish|elu|mish|abs|log|cos|sin|erf|square|lerp|bernoulli"
    r"|sigmoid_backward|tanh_backward|hardtanh_backward|hardswish_backward)_?$"
)
_READING = re.compile(
    r"^(aten::(sum|mean|var|std|var_mean|amax|amin|max|min|argmax|argmin|norm|linalg_vector_norm"
    r"|max_pool2d_with_indices|avg_pool2d|_adaptive_avg_pool2d|mse_loss|all|any)"
    r"|triton_(poi|red|per)_.*)$"
)
"""Reductions and pooling write little beside what they read; the compiler's kernels have their
results among their operands."""
_REDUCTIONS = re.compile(r"aten::(mean|sum|amax|amin|max|min|var|std|norm|linalg_vector_norm)$")
_COPIES = re.compile(r"aten::copy_$")
_FILLS = re.compile(r"aten::(_foreach_)?(zero_|fill_)$")
_LOSSES = re.compile(r"aten::nll_loss(2d)?_(forward|backward)$")
_DROPOUTS = re.compile(r"aten::native_dropout$")
_MATRIX_AT = {"aten::mm": 1, "aten::addmm": 2, "aten::bmm": 1, "aten::baddbmm": 2}

_INTEGERS = frozenset(
    {"char", "signed char", "unsigned char", "byte", "int8", "uint8", "int", "int32"}
    | {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}
)
_FLOATS = frozenset({"half", "float16", "bfloat16", "float", "float32"})


class MovedBytes(NamedTuple):
    """What one way of calling an operator moves.

    Attributes:
        untyped_read: Elements that are read and whose type was not recorded.
        untyped_written: Elements that are written and whose type was not recorded.
        elements: Of the largest operand; of a list of tensors, of all of them.
        last_side: The last side of the largest operand; 0 for a list of tensors.
        item_bytes: Size of an element of the largest operand; 0: not recorded.
        second_matrix: Of a matrix product the elements of its second factor; -1 for others.
        dequantises: Whether it copies integers or 8-bit floats into wider floats.
    """

    read_bytes: int
    written_bytes: int
    largest_bytes: int
    untyped_read: int
    untyped_written: int
    elements: int
    last_side: int
    item_bytes: int
    second_matrix: int
    dequantises: bool


SCHEMA: dict[str, type[pl.DataType]] = {
    name: pl.Boolean if name == "dequantises" else pl.Int64 for name in MovedBytes._fields
}


def moved_bytes(operator: str | None, dims: str | None, types: str | None) -> MovedBytes | None:
    """What a call moves; None where its shapes are not known."""
    try:
        shapes, names = orjson.loads(dims or "null"), orjson.loads(types or "null")
    except orjson.JSONDecodeError:
        return None
    if operator is None or not isinstance(shapes, list) or not isinstance(names, list):
        return None
    tensors: list[tuple[int, int, int]] = []
    listed: list[int] = []
    kinds: list[str] = []
    for shape, name in zip(shapes, names, strict=False):
        if not isinstance(shape, list) or not shape or not isinstance(name, str):
            continue
        if all(isinstance(side, int) for side in shape):
            item = element_bytes(name)
            if item is not None:
                tensors.append((math.prod(shape), item, shape[-1]))
                kinds.append(name.removeprefix("c10::").lower())
        elif all(
            isinstance(one, list) and all(isinstance(side, int) for side in one) for one in shape
        ):
            listed.append(sum(math.prod(one) for one in shape if one))
    if listed:
        largest = max(listed)
        read = 0 if _FILLS.match(operator) else sum(listed)
        return MovedBytes(0, 0, 0, read, largest, largest, 0, 0, -1, False)
    if not tensors:
        return None
    elements, item, last_side = max(tensors)
    read = sum(count * size for count, size, _ in tensors)
    written, is_copy = elements * item, bool(_COPIES.match(operator))
    if is_copy:
        written = tensors[0][0] * tensors[0][1]
        read -= written
    elif _FILLS.match(operator):
        read, written = 0, tensors[0][0] * tensors[0][1]
    elif _LOSSES.match(operator):
        read, written = 0, 0  # one element of each row
    elif _REDUCTIONS.match(operator):
        written = 0
    elif _DROPOUTS.match(operator):
        written += elements
    at = _MATRIX_AT.get(operator)
    converts = is_copy and len(kinds) > 1 and kinds[0] != kinds[1]
    return MovedBytes(
        read_bytes=read,
        written_bytes=written,
        largest_bytes=elements * item,
        untyped_read=0,
        untyped_written=0,
        elements=elements,
        last_side=last_side,
        item_bytes=min(size for count, size, _ in tensors if count == elements),
        second_matrix=tensors[at][0] if at is not None and len(tensors) > at else -1,
        dequantises=converts and kinds[0] in _FLOATS and kinds[1] in _INTEGERS,
    )


def least_bytes(dims: str | None, types: str | None, operator: str) -> int | None:
    """Bytes that a call must move at least; None where the operator or a shape is not known."""
    is_streaming = _IS_STREAMING.match(operator) or _LIKE_STREAMING.match(operator)
    if not is_streaming and not _READING.match(operator) and not _FILLS.match(operator):
        return None
    moved = moved_bytes(operator, dims, types)
    if moved is None or not moved.item_bytes:
        return None
    written = 0 if _READING.match(operator) else moved.written_bytes
    return moved.read_bytes + written


def bytes_of_operators(trace: Trace, operators: pl.Series) -> pl.DataFrame:
    """What each of some operators moves.

    Args:
        operators: Their event numbers; null for none.

    Returns:
        The columns of `SCHEMA` in the order given; null where shapes were not recorded.
    """
    texts = operands_as_categories(trace, operators).select("dims", "types")
    calls = texts.select(names_of_events(trace, operators).alias("operator"), "dims", "types")
    return of_each_way(calls, moved_bytes, SCHEMA)
