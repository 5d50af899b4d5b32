"""Rules about single kinds of work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.advice.evidence.compiled_code import (
    fusible_of,
    runs_compiled_code,
    what_is_left_out,
)
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject, about_gpu_work
from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.calls.call_sites import runs_under, sites_of_work
from stepscope.analysis.calls.fusible import ATTENTION, Fusible
from stepscope.analysis.calls.operands import tensor_shapes
from stepscope.analysis.calls.operands_of_work import operands_of_work
from stepscope.analysis.graph.nodes import recomputed_nodes
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.operators import analyse_operators
from stepscope.run.figures import percent
from stepscope.trace.arrays.intervals import BoolArray
from stepscope.trace.classify import DRAWS, MATRIX_GROUPS
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

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
    """The unfused attention among some GPU work.

    On one stream, a softmax between two batched matrix products (`aten::bmm`, `aten::baddbmm`)
    with no other product, convolution, fused attention or collective between them is attention.
    The backward has the same form around its softmax. What lies between the two products works on
    the scores, a matrix of queries by keys: scaling, masking, the softmax, dropout, conversions.
    Where shapes were recorded, an operator between them counts only if one of its operands is at
    least half as large as the scores. A fused kernel never writes the scores to memory.

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
    table = (
        softmax.select("op", "dur_ns")
        .with_columns(dims=operands_of_work(trace, softmax["op"])["dims"])
        .drop_nulls("dims")
        .group_by("dims")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "dims", descending=[True, False])
    )
    for dims in table["dims"]:
        shapes = tensor_shapes(dims)
        if shapes and len(shapes[0]) >= 2:
            return shapes[0]
    return None


_MULTIPLE = 8
_CALL_IT = (
    "Call torch.nn.functional.scaled_dot_product_attention instead of two products and a softmax "
    "(in transformers: attn_implementation='sdpa' or 'flash_attention_2', if the model supports "
    "it; else replace the attention's forward)."
)
_FALLBACK = (
    "scaled_dot_product_attention fell back to plain operators. Its fused kernels need half or "
    "bfloat16, heads of at most 256, no gradient for the mask, and torch.nn.attention.sdpa_kernel "
    "must allow them; for masks with a pattern, use flex_attention."
)


@about_gpu_work
def find_unfused_attention(subject: Subject, window: WindowView) -> list[Finding]:
    """Unfused attention: scores are written to memory, then scaled, masked and softmaxed.

    Measured as the time of the kernels between the two batched products of attention, see
    `unfused_attention`. The saving assumes that a fused kernel does their work within the
    products, which take as long as now. That is cautious: fused kernels make the products faster
    too.
    """
    found = attention_of(window)
    if not found.between.any():
        return []
    between = window.work.filter(pl.Series(found.between))
    products = window.work.filter(pl.Series(found.products))
    between_ns, products_ns = int(between["dur_ns"].sum()), int(products["dur_ns"].sum())
    softmaxes = len(between.filter(pl.col("group") == "softmax"))
    evidence = [
        Evidence("attention per step", window.per_device_step(between_ns + products_ns), "ns"),
        Evidence(
            "of this, on the scores between the products", window.per_device_step(between_ns), "ns"
        ),
        Evidence("softmax kernels per step", softmaxes / window.steps, "count"),
    ]
    advice = _FALLBACK if found.is_math_fallback else _CALL_IT
    if found.scores is not None:
        shape = " × ".join(map(str, found.scores))
        evidence.append(Evidence("scores", shape, "text"))
        odd = [side for side in found.scores[-2:] if side > _MULTIPLE and side % _MULTIPLE]
        if odd:
            padded = -(-odd[-1] // _MULTIPLE) * _MULTIPLE
            advice += (
                f" Pad the length {odd[-1]} to {padded}: lengths that are no multiple of "
                f"{_MULTIPLE} keep products and softmax from aligned access."
            )
    places = sites_of_work(window.trace, products).drop_nulls()
    if len(places):
        evidence.append(Evidence("in", str(places.mode().sort()[0]), "text"))
    share = window.device_share(between_ns + products_ns)
    if window.device_share(between_ns) < subject.thresholds.saving_low:
        return []
    return replayed_finding(
        subject,
        window.without(between),
        rule="unfused-attention",
        title=f"attention runs unfused and takes {percent(share)} of the step",
        assumption=(
            "a fused kernel scales, masks and softmaxes the scores within the products, which "
            "take as long as now"
        ),
        evidence=tuple(evidence),
        advice=advice,
    )


@once
def attention_of(window: WindowView) -> UnfusedAttention:
    """The unfused attention among the window's GPU work, found once."""
    return unfused_attention(window.trace, window.work, fusible_of(window))


def find_heavy_recomputation(subject: Subject) -> list[Finding]:
    """Heavy recomputation: activation checkpointing runs a notable part of the forward twice.

    Measured as the GPU work (without a GPU: the main thread's time) of operators that run again
    inside the backward. The saving assumes that nothing is recomputed, for which memory must be
    found.
    """
    window = subject.window
    if window is None:
        return []
    graph = window.graph
    moments, nodes = recomputed_nodes(window.trace, graph, window.work)
    if window.has_gpu:
        spent_ns = int(graph.dur_ns[nodes].sum())
        whole_ns = int(graph.dur_ns[graph.is_gpu].sum())
        recomputed_ns = window.per_device_step(spent_ns)
    else:
        spent_ns, whole_ns = moments.total_ns, graph.total_ns
        recomputed_ns = window.per_step(spent_ns)
    share = spent_ns / max(1, whole_ns)
    if share < subject.thresholds.recomputation:
        return []
    return replayed_finding(
        subject,
        unchanged(graph).scale_work(nodes, 0.0).scale_host(moments, 0.0),
        rule="heavy-recomputation",
        title=f"{percent(share)} of the work is recomputation for activation checkpointing",
        assumption="nothing is recomputed, and memory suffices for the activations",
        evidence=(
            Evidence("recomputed per step", recomputed_ns, "ns"),
            Evidence("share of the work", share, "share"),
        ),
        advice=(
            "If memory allows, checkpoint fewer layers, or selectively: recompute what is cheap "
            "(activations, normalisation) and keep what is expensive (matrix products, attention)."
        ),
    )


def find_slow_random_numbers(subject: Subject) -> list[Finding]:
    """Slow random numbers: on the CPU, dropout and other random operators take much of the step.

    Measured as the time of operators that draw random numbers (dropout's mask, initialisation,
    noise), in recordings without GPU work. Most draw number after number from one generator, on one
    thread, while matrix products use all of them. The saving is an upper bound: it assumes that
    drawing takes no time at all.
    """
    window = subject.window
    if window is None or window.has_gpu:
        return []
    table = analyse_operators(window.trace, window.scope).table
    table = table.filter(pl.col("category") == Category.CPU_OP.value)
    drawing = table.filter(pl.col("name").str.contains(DRAWS), pl.col("host_self_ns") > 0)
    drawing = drawing.sort("host_self_ns", "name", descending=[True, False])
    drawn_ns = int(drawing["host_self_ns"].sum())
    if not drawn_ns:
        return []
    products_ns = int(table.filter(pl.col("group").is_in(MATRIX_GROUPS))["host_self_ns"].sum())
    # With p=0, dropout is called but draws nothing.
    masks = drawing.filter(pl.col("name").str.contains("bernoulli"))
    is_dropout = (
        bool(table["name"].is_in(_DROPOUTS).any()) and 2 * masks["host_self_ns"].sum() > drawn_ns
    )
    is_drawing = (pl.col("category") == Category.CPU_OP.value) & pl.col("name").str.contains(DRAWS)
    beside: tuple[Evidence, ...] = ()
    if products_ns:
        label = "share of the time of matrix products and convolutions"
        beside = (Evidence(label, drawn_ns / products_ns, "share"),)
    names = ", ".join(drawing["name"].head(3).to_list())
    share = window.share(drawn_ns)
    return replayed_finding(
        subject,
        unchanged(window.graph).scale_host(window.spans(window.host_events(is_drawing)), 0.0),
        rule="slow-random-numbers",
        title=f"drawing random numbers takes {percent(share)} of the step",
        assumption="random numbers take no time",
        is_upper_bound=True,
        evidence=(
            Evidence("time in it per step", window.per_step(drawn_ns), "ns"),
            *beside,
            Evidence("calls per step", int(drawing["count"].sum()) / window.steps, "count"),
            Evidence("operators", names, "text"),
        ),
        advice=_with_fewer_numbers(window, is_dropout=is_dropout),
    )


_DROPOUTS = ("aten::dropout", "aten::native_dropout")


def _with_fewer_numbers(window: WindowView, *, is_dropout: bool) -> str:
    use = "Bring it into the compiled code" if runs_compiled_code(window) else "Use torch.compile"
    compiled = f"{use}, which draws in parallel within fused loops"
    if is_dropout:
        advice = (
            "A CPU draws a number for each element of dropout's mask, mostly on one thread. "
            f"{compiled}; drop whole channels of images (nn.Dropout2d), which needs far fewer "
            "numbers; place dropout where tensors are smaller; or leave it out where p is 0 and in "
            "evaluation (model.eval())."
        )
    else:
        advice = (
            "A CPU draws most random numbers on one thread. Draw fewer, draw them once for several "
            f"steps, or prepare them in DataLoader workers. {compiled}."
        )
    return f"{advice}{what_is_left_out(window)}"
