"""Slow matrix products: products and convolutions far below what the device could do with them.

Measured over operators with recorded shapes on a device with known peaks: attained is the least
time that the device needs for the FLOPs and bytes, divided by the time taken (see `show flops`).
Products that other findings are about are left out: those of unfused attention, those that do
without the tensor cores, and those in FP32 or FP64.

What the shapes tell about the reason: `product_shapes`. The saving assumes that products that fill
the device attain half of what it could do, and take no less than 10 µs. Products that do not fill
it promise nothing: only more work per product would help, and that is another step.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.finding import Evidence, Finding, Severity
from stepscope.advice.matmuls import products_of
from stepscope.advice.product_shapes import (
    ShapeCause,
    is_convolution_operator,
    readable_shapes,
    shape_cause,
)
from stepscope.advice.replayed import finding_without_saving, replayed_finding
from stepscope.advice.rules.unfused_attention import attention_of
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.flops import analyse_flops
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.hardware.devices import described_devices
from stepscope.run.figures import percent
from stepscope.trace.model import Trace

ID = "slow-matmuls"
REACHABLE = 0.5
_USUAL_PROCESSORS = 108
_GROUPS = ("gemm", "convolution")


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
        said = f"{about}: {percent(row['attained_share'])}; {cause.words()}"
        evidence.append(Evidence("such as", said, "text"))
    what = _named(table["operator"])
    title = f"{what} attain {percent(attained)} of what the device can attain for their shapes"
    small_ns = int(table.filter("small")["dur_ns"].sum())
    advice = _advice(causes, 2 * small_ns > total_ns)
    if 2 * small_ns > total_ns:
        return finding_without_saving(
            subject,
            rule=ID,
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
        window,
        unchanged(window.graph).shorten_work(dur),
        rule=ID,
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
    window.return_freed_memory()
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
