"""Floating-point operations and bytes of single operators, from the shapes they were called with.

A multiplication with an addition counts as two operations. Only the matrix work of an operator
counts: bias, scaling, softmax, masks and activations are left out, as is usual.

Formulas
    Matrix product of M×K and K×N: 2·M·N·K; batches multiply.
    Convolution: 2 · (elements of the output) · (elements of the weight) / (output channels): every
    output element is a dot product over one filter. Transposed: with the input's elements and the
    input channels instead. The backward is a product of the same size for each gradient asked for.
    Attention: 2·B·H·Nq·Nkv·(d + dv), twice as for two products with d = dv; half if causal, for
    then only one side of the diagonal is computed (FlashAttention-2, Dao 2023, section 4.1). The
    backward has five such products instead of two: 2.5 times the forward (the same source).
    Grouped product: the sum over the groups, which the shapes of the whole give without the sizes
    of the single groups.

Bytes are those of the operands and results, each moved once: the least that can be moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from stepscope.analysis.calls.operands import Call, element_bytes

Shape = tuple[int, ...]


class Work(NamedTuple):
    """What an operator has to do.

    Attributes:
        bytes: Bytes of its operands and results; None where a type or shape is not known.
        type: Type of its (first) operand, as "float", "half", "bfloat16".
    """

    flops: int
    bytes: int | None
    type: str


MOST = 1 << 62
"""What is larger is no work but damage, and would not fit into 64 bits."""

Formula = Callable[[Call], Work | None]


def _moved(type_name: str, *counts: int) -> int | None:
    item = element_bytes(type_name)
    return None if item is None else item * sum(counts)


def _product(call: Call, first: Shape | None, second: Shape | None, at: int) -> Work | None:
    """A matrix product, with equal or broadcast leading dimensions."""
    if first is None or second is None:
        return None
    if len(first) == 1:
        first = (1, *first)
    if len(second) == 1:
        second = (*second, 1)
    if first[-1] != second[-2]:
        return None
    batch = _broadcast(first[:-2], second[:-2])
    if batch is None:
        return None
    rows, inner, columns = first[-2], first[-1], second[-1]
    outputs = prod(batch) * rows * columns
    moved = _moved(call.type(at), prod(first), prod(second), outputs)
    return Work(2 * outputs * inner, moved, call.type(at))


def _broadcast(first: Shape, second: Shape) -> Shape | None:
    longest = max(len(first), len(second))
    pairs = zip(
        (1,) * (longest - len(first)) + first,
        (1,) * (longest - len(second)) + second,
        strict=True,
    )
    sizes = []
    for one, other in pairs:
        if one != other and 1 not in (one, other):
            return None
        sizes.append(other if one == 1 else one)
    return tuple(sizes)


def _matrices(first: int, second: int) -> Formula:
    def formula(call: Call) -> Work | None:
        return _product(call, call.shape(first), call.shape(second), first)

    return formula


def _linear(call: Call) -> Work | None:
    weight = call.shape(1)
    if weight is None or len(weight) != 2:
        return None
    return _product(call, call.shape(0), (weight[1], weight[0]), 0)


def _grouped(call: Call) -> Work | None:
    first, second = call.shape(0), call.shape(1)
    if first is None or second is None:
        return None
    if len(first) == 2 and len(second) == 3:
        if first[1] != second[1]:
            return None
        outputs = first[0] * second[2]
        inner = first[1]
    elif len(first) == 2 and len(second) == 2:
        # Groups along the inner dimension: each contributes its share of it to its own result.
        if first[1] != second[0]:
            return None
        flops = 2 * first[0] * first[1] * second[1]
        return Work(flops, None, call.type(0))
    elif len(first) == 3 and len(second) == 2:
        if first[2] != second[0]:
            return None
        outputs = first[1] * second[1]
        inner = first[2]
    else:
        return _product(call, first, second, 0)
    moved = _moved(call.type(0), prod(first), prod(second), outputs)
    return Work(2 * outputs * inner, moved, call.type(0))


@dataclass(frozen=True)
class _Convolution:
    """Where a convolution operator has its operands."""

    input: int = 0
    weight: int = 1
    stride: int = 3
    padding: int = 4
    dilation: int = 5
    transposed: int | None = None
    output_padding: int | None = None
    is_transposed: bool = False

    def __call__(self, call: Call) -> Work | None:
        shape, weight = call.shape(self.input), call.shape(self.weight)
        if shape is None or weight is None or len(weight) < 3:
            return None
        spatial = len(weight) - 2
        if len(shape) == spatial + 1:
            shape = (1, *shape)
        if len(shape) != len(weight):
            return None
        transposed = self.is_transposed
        if self.transposed is not None:
            flag = call.flag(self.transposed)
            if flag is None:
                return None
            transposed = flag
        stride = _spread(call.integers(self.stride), spatial)
        padding = _spread(call.integers(self.padding), spatial)
        dilation = _spread(call.integers(self.dilation), spatial)
        if stride is None or padding is None or dilation is None:
            return None
        extra = (0,) * spatial
        if transposed and self.output_padding is not None:
            extra = _spread(call.integers(self.output_padding), spatial) or extra
        if transposed:
            sides = [
                (size - 1) * step - 2 * pad + dil * (kernel - 1) + more + 1
                for size, kernel, step, pad, dil, more in zip(
                    shape[2:], weight[2:], stride, padding, dilation, extra, strict=True
                )
            ]
            # A transposed weight is (input channels, output channels of a group, …). Groups do not
            # show in its shape alone; the input's channels do.
            groups = max(shape[1] // max(weight[0], 1), 1)
            outputs = shape[0] * weight[1] * groups * prod(sides)
            flops = 2 * prod(shape) * weight[1] * prod(weight[2:])
        else:
            sides = [
                (size + 2 * pad - dil * (kernel - 1) - 1) // step + 1
                for size, kernel, step, pad, dil in zip(
                    shape[2:], weight[2:], stride, padding, dilation, strict=True
                )
            ]
            outputs = shape[0] * weight[0] * prod(sides)
            flops = 2 * outputs * prod(weight[1:])
        if min(sides, default=1) < 1:
            return None
        type_name = call.type(self.input)
        return Work(flops, _moved(type_name, prod(shape), prod(weight), outputs), type_name)


def _spread(values: Shape | None, number: int) -> Shape | None:
    """One value for all dimensions, or one for each."""
    if values is None:
        return None
    if len(values) == 1:
        return values * number
    return values if len(values) == number else None


def _convolution_backward(call: Call) -> Work | None:
    """grad_output, input, weight, …: one product per gradient that was asked for."""
    gradient, shape, weight = call.shape(0), call.shape(1), call.shape(2)
    transposed = call.flag(7)
    if gradient is None or shape is None or weight is None or transposed is None:
        return None
    # The forward's operations, from the side whose every element is one dot product.
    flops = 2 * prod(shape if transposed else gradient) * prod(weight[1:])
    wanted = [
        word.strip() in ("True", "1", "true")
        for word in (call.values[10].strip("[]").split(",") if len(call.values) > 10 else [])
    ]
    if len(wanted) < 2:
        return None
    type_name = call.type(1)
    counts = [prod(gradient)]
    if wanted[0]:
        counts += [prod(weight), prod(shape)]
    if wanted[1]:
        counts += [prod(shape), prod(weight)]
    products = int(wanted[0]) + int(wanted[1])
    return Work(flops * products, _moved(type_name, *counts), type_name)


@dataclass(frozen=True)
class _Attention:
    """Where an attention operator has its operands."""

    query: int = 0
    causal: int | None = None
    heads_first: bool = True
    """(batch, heads, tokens, width); otherwise (batch, tokens, heads, width)."""
    backward: bool = False
    mask_type: int | None = None
    """Where 1 and 2 stand for causal masks."""
    lengths: int | None = None
    """Where sequences of several lengths are given: then the shapes do not tell the work."""

    def __call__(self, call: Call) -> Work | None:
        query, key, value = (call.shape(self.query + place) for place in range(3))
        if query is None or key is None or value is None:
            return None
        if self.lengths is not None and call.shape(self.lengths) is not None:
            return None
        if len(query) != 4 or len(key) != 4 or len(value) != 4:
            return None
        tokens = 2 if self.heads_first else 1
        heads = 3 - tokens
        causal = False
        if self.causal is not None:
            flag = call.flag(self.causal)
            if flag is None:
                return None
            causal = flag
        if self.mask_type is not None:
            kind = call.integers(self.mask_type)
            if kind is None:
                return None
            causal = kind[0] in (1, 2)
        pairs = query[0] * query[heads] * query[tokens] * key[tokens]
        flops = 2 * pairs * (query[3] + value[3])
        if causal:
            flops //= 2
        if self.backward:
            flops = flops * 5 // 2
        type_name = call.type(self.query)
        outputs = prod(query[:3]) * value[3]
        counts = [prod(query), prod(key), prod(value), outputs]
        # The backward reads all of these and the output's gradient, and writes three gradients.
        if self.backward:
            counts += [outputs, prod(query), prod(key), prod(value)]
        return Work(flops, _moved(type_name, *counts), type_name)


_CONVOLUTION = _Convolution(transposed=6, output_padding=7)

FORMULAS: dict[str, Formula] = {
    "aten::mm": _matrices(0, 1),
    "aten::bmm": _matrices(0, 1),
    "aten::mv": _matrices(0, 1),
    "aten::dot": _matrices(0, 1),
    "aten::vdot": _matrices(0, 1),
    "aten::matmul": _matrices(0, 1),
    "aten::linear": _linear,
    "aten::mkldnn_linear": _linear,
    "mkldnn::_linear_pointwise": _linear,
    "aten::addmm": _matrices(1, 2),
    "aten::_addmm_activation": _matrices(1, 2),
    "aten::addmv": _matrices(1, 2),
    "aten::baddbmm": _matrices(1, 2),
    "aten::addbmm": _matrices(1, 2),
    "aten::_scaled_mm": _matrices(0, 1),
    "aten::_int_mm": _matrices(0, 1),
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::convolution": _CONVOLUTION,
    "aten::_convolution": _CONVOLUTION,
    "aten::convolution_overrideable": _CONVOLUTION,
    "aten::conv1d": _Convolution(),
    "aten::conv2d": _Convolution(),
    "aten::conv3d": _Convolution(),
    "aten::cudnn_convolution": _Convolution(padding=2, stride=3, dilation=4),
    "aten::cudnn_convolution_relu": _Convolution(stride=3, padding=4, dilation=5),
    "aten::miopen_convolution": _Convolution(padding=3, stride=4, dilation=5),
    "aten::miopen_depthwise_convolution": _Convolution(padding=3, stride=4, dilation=5),
    "aten::mkldnn_convolution": _Convolution(padding=3, stride=4, dilation=5),
    "aten::_conv_depthwise2d": _Convolution(stride=4, padding=5, dilation=6),
    "aten::cudnn_convolution_transpose": _Convolution(
        padding=2, output_padding=3, stride=4, dilation=5, is_transposed=True
    ),
    "aten::miopen_convolution_transpose": _Convolution(
        padding=3, output_padding=4, stride=5, dilation=6, is_transposed=True
    ),
    "aten::convolution_backward": _convolution_backward,
    "aten::scaled_dot_product_attention": _Attention(causal=5),
    "aten::_scaled_dot_product_flash_attention": _Attention(causal=4),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _Attention(causal=4),
    "aten::_scaled_dot_product_efficient_attention": _Attention(causal=6),
    "aten::_scaled_dot_product_cudnn_attention": _Attention(causal=6),
    "aten::_flash_attention_forward": _Attention(causal=8, heads_first=False, lengths=3),
    "aten::_efficient_attention_forward": _Attention(mask_type=9, heads_first=False, lengths=4),
    "flash_attn::_flash_attn_forward": _Attention(causal=5, heads_first=False),
    "aten::_scaled_dot_product_flash_attention_backward": _Attention(
        query=1, causal=11, backward=True
    ),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _Attention(
        query=1, causal=7, backward=True
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _Attention(
        query=1, causal=11, backward=True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _Attention(
        query=1, causal=14, backward=True
    ),
    "aten::_flash_attention_backward": _Attention(
        query=1, causal=11, heads_first=False, backward=True, lengths=6
    ),
    "aten::_efficient_attention_backward": _Attention(
        query=1, mask_type=14, heads_first=False, backward=True, lengths=6
    ),
    "flash_attn::_flash_attn_backward": _Attention(
        query=1, causal=11, heads_first=False, backward=True
    ),
}
"""Operators whose work is known from their shapes. Those that only call others of these are here
too: the innermost one whose shapes were recorded counts."""


def work_of(call: Call) -> Work | None:
    """What a call has to do; None where no formula fits, or the shapes do not suffice."""
    formula = FORMULAS.get(call.name)
    work = None if formula is None else formula(call)
    if work is None or not 0 <= work.flops < MOST or (work.bytes or 0) >= MOST:
        return None
    return work
