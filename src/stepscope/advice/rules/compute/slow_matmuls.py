"""Slow matrix products: products and convolutions far below what the device could do with them.

Measured over operators with recorded shapes on a device with known peaks: attained is the least
time that the device needs for the FLOPs and bytes, divided by the time taken (see `show flops`).
Products that other findings are about are left out: those of unfused attention, those that do
without the tensor cores, and those in FP32 or FP64.

What the shapes tell about the reason: `shape_cause`. The saving assumes that products that fill
the device attain half of what it could do, and take no less than 10 µs. Products that do not fill
it promise nothing: only more work per product would help, and that is another step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, plain_finding
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.rules.compute.precision import products_of
from stepscope.advice.rules.compute.work import attention_of
from stepscope.analysis.calls.operands import tensor_shapes
from stepscope.analysis.flops import analyse_flops
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.hardware.devices import described_devices
from stepscope.run.figures import percent
from stepscope.trace.model import Trace

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

    def text(self) -> str:
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
        shapes: Shapes of its operands as JSON, as they were recorded.
        type_: Type of its operands, as in the table of FLOPs.
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
    return " · ".join("×".join(map(str, shape)) for shape in tensor_shapes(shapes))


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


_AFTER_A_SUMMAND = _Matrices(at=1)
_LINEAR = _Matrices(right=lambda weight: (weight[1], weight[0]))
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


REACHABLE = 0.5
_USUAL_PROCESSORS = 108
_GROUPS = ("gemm", "convolution")


def find_slow_matmuls(subject: Subject) -> list[Finding]:
    """The finding, if such products take a notable part of the step."""
    window = subject.window
    products = products_of(subject)
    if window is None or products is None:
        return []
    limits = subject.thresholds
    is_matrix = window.work["group"].is_in(_GROUPS)
    matrix_ns = int(window.work["dur_ns"].filter(is_matrix).sum())
    if window.device_share(matrix_ns) < limits.matmul_share:
        return []
    slow = _slow(window, products.table, limits.matmul_attained)
    total_ns = int(slow["dur_ns"].sum())
    share = window.device_share(total_ns)
    if slow.is_empty() or share < limits.matmul_share:
        return []
    keys = ["operator", "shapes", "type"]
    table = (
        slow.group_by(*keys)
        .agg(
            (pl.col("attained_share") * pl.col("dur_ns")).sum() / pl.col("dur_ns").sum(),
            pl.col("dur_ns").sum(),
            pl.col("flops_per_call").first(),
        )
        .sort("dur_ns", *keys, descending=[True, False, False, False])
    )
    processors = _multiprocessors(window.trace)
    causes = [
        shape_cause(operator, shapes, type_, flops, processors)
        for operator, shapes, type_, flops in table.select(*keys, "flops_per_call").iter_rows()
    ]
    table = table.with_columns(small=pl.Series([cause.is_small for cause in causes]))
    attained = float((slow["attained_share"] * slow["dur_ns"]).sum()) / max(1, total_ns)
    evidence = [
        Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
        Evidence("share of the step", share, "share"),
        Evidence("of the device's limits they attain", attained, "share"),
    ]
    for row, cause in zip(table.head(3).iter_rows(named=True), causes, strict=False):
        about = f"{row['operator']} {readable_shapes(row['shapes'])} {row['type']}"
        text = f"{about}: {percent(row['attained_share'])}; {cause.text()}"
        evidence.append(Evidence("such as", text, "text"))
    what = _named(table["operator"])
    title = f"{what} attain {percent(attained)} of what the device can attain for their shapes"
    small_ns = int(table.filter("small")["dur_ns"].sum())
    advice = _advice(causes, 2 * small_ns > total_ns)
    if 2 * small_ns > total_ns:
        return plain_finding(
            subject,
            rule="slow-matmuls",
            title=title,
            severity=Severity.LOW,
            reason="they are too small to fill the device, and more work per product changes the "
            "step itself",
            evidence=tuple(evidence),
            advice=advice,
        )
    large = slow.join(table.filter(~pl.col("small")), on=keys, how="semi", nulls_equal=True)
    dur = window.graph.dur_ns.copy()
    better = large["dur_ns"] * large["attained_share"] / REACHABLE
    dur[large["node"].to_numpy()] = np.maximum(better.to_numpy(), limits.small_kernel_ns).astype(
        np.int64
    )
    return replayed_finding(
        subject,
        unchanged(window.graph).shorten_work(dur),
        rule="slow-matmuls",
        title=title,
        assumption=f"they attain {percent(REACHABLE)} of it, as well-shaped large products do",
        evidence=tuple(evidence),
        advice=advice,
    )


def _slow(window: WindowView, products: pl.DataFrame, least: float) -> pl.DataFrame:
    """The products in question: rows of `work` with what is known of their operators.

    That is operator, shapes, type, attained_share and flops_per_call.
    """
    report = analyse_flops(window.trace, window.scope)
    slow = report.operators.filter(
        pl.col("attained_share") < least, ~pl.col("type").is_in(["float32", "float64"])
    ).select(
        *("name", "dims", "type", "device", "attained_share"),
        flops_per_call=pl.col("flops") / pl.col("count"),
    )
    of_attention = window.work.filter(pl.Series(attention_of(window).products))["node"]
    without_units = products.filter(pl.col("type") == "half", pl.col("uses") == "no")["node"]
    others = pl.concat([of_attention, without_units])
    matrix = (
        window.work["node", "event", "dur_ns", "group", "device"]
        .filter(pl.col("group").is_in(_GROUPS), ~pl.col("node").is_in(others.implode()))
        .drop("group")
    )
    # Few are slow: the rows of the others are never made.
    of_slow = report.work.join(slow, on=["name", "dims", "type"], how="semi")
    counted = matrix.join(of_slow, on="event", maintain_order="left")
    return counted.join(slow, on=["name", "dims", "type", "device"], maintain_order="left").rename(
        {"name": "operator", "dims": "shapes"}
    )


def _named(operators: pl.Series) -> str:
    """What operators are: matrix products, convolutions, or both."""
    are_convolutions = [is_convolution_operator(operator) for operator in operators]
    if all(are_convolutions):
        return "convolutions"
    return "matrix products and convolutions" if any(are_convolutions) else "matrix products"


def _multiprocessors(trace: Trace) -> int:
    """Multiprocessors of the device, as the recorder says; else a common number."""
    described = described_devices(trace)["multiprocessors"].drop_nulls()
    counts = described.filter(described > 0)
    return int(counts[0]) if len(counts) else _USUAL_PROCESSORS


def _advice(causes: list[ShapeCause], is_small: bool) -> str:
    advice = []
    odd = [cause for cause in causes[:3] if cause.odd_sides]
    if odd:
        multiple = max(cause.multiple for cause in odd)
        sides = []
        if not all(cause.is_convolution for cause in odd):
            sides.append("vocabulary, hidden size, heads, and batch times sequence")
        if any(cause.is_convolution for cause in odd):
            sides.append("channels of convolutions")
        advice.append(
            f"Pad odd sides to a multiple of {multiple}, better of 64: {', and '.join(sides)}."
        )
    if is_small:
        advice.append(
            "Give each product more work: a larger batch, several products in one (bmm, a fused "
            "QKV projection, grouped_mm), fewer and wider layers."
        )
    if not advice:
        advice.append(
            "Keep operands contiguous, try torch.compile(mode='max-autotune') or "
            "torch.backends.cudnn.benchmark = True, and channels_last for convolutions."
        )
    return " ".join(advice)
