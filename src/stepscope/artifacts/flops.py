"""Floating-point operations of an operator from its recorded shapes, as torch estimates them.

A multiplication and an addition count as two operations. Matrix products, convolutions in two
dimensions, and elementwise addition and multiplication are counted, as in torch; every other
operator counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import orjson

_LEAST_DIMENSIONS = {"aten::mm": 2, "aten::addmm": 2, "aten::bmm": 3, "aten::baddbmm": 3}
_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::bmm": (0, 1),
    "aten::baddbmm": (1, 2),
}
_ELEMENTWISE = {"aten::add", "aten::mul"}


def flops_of(name: str, arguments: dict[str, Any]) -> int:
    """Operations of one call; 0 if it is of another kind or its shapes were not recorded."""
    dims = arguments.get("Input Dims")
    if not isinstance(dims, list) or not name.startswith("aten::"):
        return 0
    try:
        if name in _PRODUCTS:
            return _product(name, dims)
        if name in _ELEMENTWISE:
            return math.prod(dims[0]) if dims[0] else 0
        if name == "aten::conv2d":
            return _convolution(dims, arguments.get("Concrete Inputs"))
    except (IndexError, TypeError, ValueError, orjson.JSONDecodeError):
        return 0
    return 0


def _product(name: str, dims: Sequence[Any]) -> int:
    left, right = (dims[position] for position in _PRODUCTS[name])
    if min(len(left), len(right)) < _LEAST_DIMENSIONS[name]:
        return 0
    batch = left[0] if len(left) == 3 else 1
    return int(2 * batch * left[-2] * left[-1] * right[-1])


def _convolution(dims: Sequence[Any], inputs: Any) -> int:
    """Operations of conv2d(input, weight, bias, stride, padding, dilation, groups)."""
    batch, _, height, width = dims[0]
    out_channels, in_channels_per_group, kernel_height, kernel_width = dims[1]
    stride, padding, dilation = (_pair(inputs[position]) for position in (3, 4, 5))
    out_height = _reach(height, kernel_height, stride[0], padding[0], dilation[0])
    out_width = _reach(width, kernel_width, stride[1], padding[1], dilation[1])
    taps = in_channels_per_group * kernel_height * kernel_width
    return int(2 * batch * out_channels * out_height * out_width * taps)


def _pair(text: str) -> tuple[int, int]:
    values = orjson.loads(text)
    numbers = values if isinstance(values, list) else [values]
    return int(numbers[0]), int(numbers[-1])


def _reach(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
