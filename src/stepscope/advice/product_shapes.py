"""What the shapes of a matrix product or convolution tell about why it is slow.

A side that is no multiple of 8 (16-bit types; 16 for 8-bit types) keeps a product from the fastest
kernels. A result of fewer tiles of 128 × 128 than the device has multiprocessors leaves some of
them idle. Of a convolution, the sides are its channels, and the result is that of its forward, or
in the backward the gradient of its input. Nothing is told of grouped and transposed ones, whose
shapes alone do not say what a kernel computes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_TILE = 128
_MULTIPLES = {"float16": 8, "bfloat16": 8, "float8": 16, "int8": 16}


@dataclass(frozen=True)
class ShapeCause:
    """Why products of a shape are slow, as far as the shape tells.

    Attributes:
        odd_sides: Sides that keep it from the fastest kernels.
        multiple: What sides must be a multiple of for these.
        is_small: Whether its result cannot fill the device.
        is_convolution: Whether it is a convolution: then the sides are channels.
    """

    odd_sides: tuple[int, ...] = ()
    multiple: int = 1
    is_small: bool = False
    is_convolution: bool = False

    def words(self) -> str:
        """In a few words."""
        if self.odd_sides:
            sides = ", ".join(map(str, self.odd_sides))
            what = "channels " if self.is_convolution else ""
            return f"{what}{sides}: no multiple of {self.multiple}"
        return "too small to fill the device" if self.is_small else "not told by its shape"


@dataclass(frozen=True)
class _Product:
    """Sides of the matrices that are multiplied, and how many tiles the result has."""

    sides: tuple[int, ...]
    tiles: int


Shape = tuple[int, ...]


def shape_cause(
    operator: str, shapes: str, type_: str, flops: float, processors: int | None
) -> ShapeCause:
    """What the shapes of a call tell.

    Args:
        operator: Name of the operator, such as "aten::mm".
        shapes: Shapes of its operands as JSON, as they were recorded.
        type_: Type of its operands, as in the table of FLOPs.
        flops: What a call has to do.
        processors: Multiprocessors of the device; None where that is not known.
    """
    is_convolution = is_convolution_operator(operator)
    product = _product_of(operator, [_shape(one) for one in json.loads(shapes)], flops)
    if product is None:
        return ShapeCause(is_convolution=is_convolution)
    multiple = _MULTIPLES.get(type_, 1)
    odd = tuple(sorted({side for side in product.sides if side % multiple}))
    is_small = processors is not None and product.tiles < processors
    return ShapeCause(odd, multiple, is_small, is_convolution)


def is_convolution_operator(operator: str) -> bool:
    """Whether an operator is a convolution by its name."""
    return "conv" in operator


def readable_shapes(shapes: str) -> str:
    """The shapes of the tensors among some operands: "8944×1024 · 1024×2816"."""
    found = [shape for one in json.loads(shapes) if (shape := _shape(one))]
    return " · ".join("×".join(map(str, shape)) for shape in found)


def _shape(operand: Any) -> Shape:
    """The shape of a tensor; empty for scalars and lists of tensors."""
    if isinstance(operand, list) and all(isinstance(side, int) for side in operand):
        return tuple(operand)
    return ()


def _product_of(operator: str, operands: list[Shape], flops: float) -> _Product | None:
    if operator == "aten::convolution_backward":
        return _of_backward(*operands[:3]) if len(operands) >= 3 else None
    if is_convolution_operator(operator):
        is_plain = "transpose" not in operator and len(operands) >= 2
        return _of_convolution(operands[0], operands[1], flops) if is_plain else None
    rule = _MATRICES.get(operator)
    if rule is None or len(operands) < rule.at + 2:
        return None
    left, right = operands[rule.at : rule.at + 2]
    if len(left) < 2 or len(right) < 2:
        return None
    return _of_matrices(left, rule.right(right))


def _of_matrices(left: Shape, right: Shape) -> _Product:
    batch, rows, columns = 1, left[-2], right[-1]
    if len(right) == 2:
        rows = math.prod(left[:-1])  # torch folds the batch into the rows
    else:
        batch = max(math.prod(left[:-2]), math.prod(right[:-2]))
    return _Product((*left[-2:], columns), batch * _tiles(rows, columns))


def _of_convolution(image: Shape, weight: Shape, flops: float) -> _Product | None:
    """Stride and padding are no shapes; but its FLOPs tell how large the result is."""
    if len(weight) < 3 or not _takes_all_channels(image, weight):
        return None
    results = flops / (2 * math.prod(weight[1:]))
    return _Product(weight[:2], _tiles(round(results / weight[0]), weight[0]))


def _of_backward(gradient: Shape, image: Shape, weight: Shape) -> _Product | None:
    if len(weight) < 3 or len(gradient) != len(weight) or not _takes_all_channels(image, weight):
        return None
    return _Product(weight[:2], _tiles(image[0] * math.prod(image[2:]), image[1]))


def _takes_all_channels(image: Shape, weight: Shape) -> bool:
    """Whether each output channel is made of all input channels, in one group."""
    if len(image) not in (len(weight), len(weight) - 1) or not math.prod(weight):
        return False
    return image[1 - (len(weight) - len(image))] == weight[1]


def _tiles(rows: int, columns: int) -> int:
    return math.ceil(rows / _TILE) * math.ceil(columns / _TILE)


@dataclass(frozen=True)
class _Matrices:
    """Where an operator has its matrices, and how it takes the second."""

    at: int = 0
    right: Callable[[Shape], Shape] = lambda shape: shape


def _turned(weight: Shape) -> Shape:
    return (weight[1], weight[0])


_AFTER_A_SUMMAND = _Matrices(at=1)
_LINEAR = _Matrices(right=_turned)
_MATRICES = {
    "aten::mm": _Matrices(),
    "aten::bmm": _Matrices(),
    "aten::matmul": _Matrices(),
    "aten::linear": _LINEAR,
    "aten::addmm": _AFTER_A_SUMMAND,
    "aten::_addmm_activation": _AFTER_A_SUMMAND,
    "aten::baddbmm": _AFTER_A_SUMMAND,
    "aten::_scaled_mm": _Matrices(),
    "aten::_int_mm": _Matrices(),
}
"""Operators whose result is one matrix, or one for each member of a batch."""
