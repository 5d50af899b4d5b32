"""The least that operators must move through the device's memory, from their operands' shapes.

Each operand is read once and each result is written once. A cache may serve some of it, so a kernel
can be faster; none that has to go to memory is.
"""

from __future__ import annotations

import math
import re

import orjson

from stepscope.analysis.calls.operands import element_bytes

STREAMING = (
    r"^aten::(mul|add|sub|div|neg|pow|silu|gelu|relu|sigmoid|tanh|exp|rsqrt|sqrt|copy|where|clamp"
    r"|clamp_min|addcmul|addcdiv|masked_fill|silu_backward|gelu_backward|threshold_backward)_?$"
)
"""Elementwise operators: they read their operands and write a result as large as the largest."""
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
_WRITING = re.compile(r"^aten::(fill|zero)_$")
_IS_STREAMING = re.compile(STREAMING)


def least_bytes(dims: str | None, types: str | None, operator: str) -> int | None:
    """Bytes that a call must move at least; None where the operator or a shape is not known.

    Args:
        dims: Shapes of its operands, as JSON.
        types: Their types, as JSON.
        operator: Its name.
    """
    if _IS_STREAMING.match(operator) or _LIKE_STREAMING.match(operator):
        return operand_and_result_bytes(dims, types, operator)
    if _READING.match(operator) or _WRITING.match(operator):
        sizes = _sizes(dims, types)
        return sum(count * item for count, item in sizes) if sizes else None
    return None


def operand_and_result_bytes(dims: str | None, types: str | None, operator: str) -> int | None:
    """Bytes of the operands and of a result as large as the largest; None if they are not known."""
    sizes = _sizes(dims, types)
    if not sizes:
        return None
    operand_bytes = sum(count * item for count, item in sizes)
    if operator.startswith("aten::copy_"):
        return operand_bytes  # the first operand is the result
    largest, item = max(sizes)
    return operand_bytes + largest * item


def _sizes(dims: str | None, types: str | None) -> list[tuple[int, int]]:
    """Number of elements and bytes of one, of each operand that is a tensor of a known type."""
    try:
        shapes, names = orjson.loads(dims or "null"), orjson.loads(types or "null")
    except orjson.JSONDecodeError:
        return []
    if not isinstance(shapes, list) or not isinstance(names, list):
        return []
    sizes: list[tuple[int, int]] = []
    for shape, name in zip(shapes, names, strict=False):
        is_tensor = isinstance(shape, list) and shape and all(isinstance(n, int) for n in shape)
        item = element_bytes(name) if isinstance(name, str) else None
        if is_tensor and item is not None:
            sizes.append((math.prod(shape), item))
    return sizes
