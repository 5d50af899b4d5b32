"""Slow matrix products: products and convolutions far below what the device could do with them.

Measured over operators with recorded shapes on a device with known peaks: attained is the least
time that the device needs for the FLOPs and bytes, divided by the time taken (see `show flops`).
Products that other findings are about are left out: those of unfused attention, those that do
without the tensor cores, and those in FP32 or FP64.

What the shapes tell: a side that is no multiple of 8 (16-bit types; 16 for 8-bit types) keeps the
product from the fastest kernels; a result of fewer tiles of 128 × 128 than the device has
multiprocessors leaves some of them idle. The saving assumes that products that fill the device
attain half of what it could do, and take no less than 10 µs. Products that do not fill it promise
nothing: only more work per product would help, and that is another step.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.matmuls import products_of
from stepscope.advice.replayed import finding_without_saving, replayed_finding
from stepscope.advice.rules.unfused_attention import attention_of
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.flops import analyse_flops
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.hardware.vendor import described_devices
from stepscope.run.figures import percent
from stepscope.trace.model import Trace

ID = "slow-matmuls"
REACHABLE = 0.5
_GROUPS = ("gemm", "convolution")
_TILE = 128
_MULTIPLES = {"float16": 8, "bfloat16": 8, "float8": 16, "int8": 16}
_USUAL_PROCESSORS = 108


@dataclass(frozen=True)
class _Cause:
    """Why products of a shape are slow, as far as the shape tells."""

    odd_sides: tuple[int, ...]
    is_small: bool

    def words(self) -> str:
        """In a few words."""
        if self.odd_sides:
            sides = ", ".join(map(str, self.odd_sides))
            return f"{sides}: no multiple of 8"
        return "too small to fill the device" if self.is_small else "not told by its shape"


def find(subject: Subject) -> list[Finding]:
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
        .agg(pl.col("dur_ns").sum(), pl.col("attained_share").first())
        .sort("dur_ns", *keys, descending=[True, False, False, False])
    )
    processors = _multiprocessors(window.trace)
    causes = [
        _cause_of(operator, shapes, type_, processors)
        for operator, shapes, type_ in table.select(keys).iter_rows()
    ]
    table = table.with_columns(small=pl.Series([cause.is_small for cause in causes]))
    attained = float((slow["attained_share"] * slow["dur_ns"]).sum()) / max(1, total_ns)
    evidence = [
        Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
        Evidence("share of the step", share, "share"),
        Evidence("of the device's limits they attain", attained, "share"),
    ]
    for row, cause in zip(table.head(3).iter_rows(named=True), causes, strict=False):
        about = f"{row['operator']} {_readable(row['shapes'])} {row['type']}"
        said = f"{about}: {percent(row['attained_share'])}; {cause.words()}"
        evidence.append(Evidence("such as", said, "text"))
    title = (
        f"matrix products attain {percent(attained)} of what the device could do with their shapes"
    )
    small_ns = int(table.filter("small")["dur_ns"].sum())
    advice = _advice(causes, 2 * small_ns > total_ns)
    if 2 * small_ns > total_ns:
        return finding_without_saving(
            subject,
            rule=ID,
            title=title,
            severity=Severity.LOW,
            reason="they do not fill the device, and more work per product is another step",
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
        window,
        unchanged(window.graph).shorten_work(dur),
        rule=ID,
        title=title,
        assumption=f"they attain {percent(REACHABLE)} of it, as well-shaped large products do",
        evidence=tuple(evidence),
        advice=advice,
    )


def _slow(window: WindowView, products: pl.DataFrame, least: float) -> pl.DataFrame:
    """The products in question: rows of `work` with operator, shapes, type and attained_share."""
    report = analyse_flops(window.trace, window.scope)
    slow = report.operators.filter(
        pl.col("attained_share") < least, ~pl.col("type").is_in(["float32", "float64"])
    )["name", "dims", "type", "attained_share"]
    of_attention = window.work.filter(pl.Series(attention_of(window).products))["node"]
    without_units = products.filter(pl.col("type") == "half", pl.col("uses") == "no")["node"]
    others = pl.concat([of_attention, without_units])
    matrix = (
        window.work["node", "event", "dur_ns", "group"]
        .filter(pl.col("group").is_in(_GROUPS), ~pl.col("node").is_in(others.implode()))
        .drop("group")
    )
    counted = report.work.join(slow, on=["name", "dims", "type"], how="inner")
    return matrix.join(counted, on="event", maintain_order="left").rename(
        {"name": "operator", "dims": "shapes"}
    )


def _cause_of(operator: str, shapes: str, type_: str | None, processors: int) -> _Cause:
    """What the shapes of a call tell."""
    tensors = [
        shape
        for shape in json.loads(shapes)
        if isinstance(shape, list) and len(shape) >= 2 and all(isinstance(n, int) for n in shape)
    ]
    if len(tensors) < 2:
        return _Cause((), is_small=False)
    if "conv" in operator:
        image, weight = tensors[0], tensors[-1]
        sides = weight[:2]
        rows = image[0] * math.prod(image[2:])
        tiles = math.ceil(rows / _TILE) * math.ceil(weight[0] / _TILE)
    else:
        left, right = tensors[-2], tensors[-1]
        sides = [*left[-2:], right[-1]]
        batch = math.prod(left[:-2])
        tiles = batch * math.ceil(left[-2] / _TILE) * math.ceil(right[-1] / _TILE)
    multiple = _MULTIPLES.get(type_ or "", 1)
    odd = sorted({side for side in sides if side % multiple})
    return _Cause(tuple(odd), tiles < processors)


def _multiprocessors(trace: Trace) -> int:
    """Multiprocessors of the device, as the recorder says; else a common number."""
    for text in described_devices(trace)["properties"].drop_nulls():
        count = json.loads(text).get("numSms")
        if isinstance(count, int) and count > 0:
            return count
    return _USUAL_PROCESSORS


def _readable(shapes: str) -> str:
    """The shapes of the tensors among some operands: "8944×1024 · 1024×2816"."""
    tensors = [shape for shape in json.loads(shapes) if isinstance(shape, list) and shape]
    return " · ".join(
        "×".join(map(str, shape)) for shape in tensors if not isinstance(shape[0], list)
    )


def _advice(causes: list[_Cause], is_small: bool) -> str:
    advice = []
    if any(cause.odd_sides for cause in causes[:3]):
        advice.append(
            "Pad odd sides to a multiple of 8, better of 64: vocabulary, hidden size, heads, and "
            "batch times sequence."
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
