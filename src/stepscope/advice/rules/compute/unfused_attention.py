"""Unfused attention: scores are written to memory, and scaled, masked and softmaxed by themselves.

Measured as the time of the kernels between the two batched products of attention, see
`calls.unfused_attention`. The saving assumes that a fused kernel does their work within the
products, which take as long as now. That is cautious: fused kernels make the products faster too.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.fusible_work import fusible_of
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.calls.kernel_origins import places_of_work
from stepscope.analysis.calls.unfused_attention import UnfusedAttention, unfused_attention
from stepscope.analysis.graph.replay import unchanged
from stepscope.run.figures import percent

ID = "unfused-attention"
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


def find(subject: Subject) -> list[Finding]:
    """The finding, if the step is notably shorter without the kernels on the scores."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    found = attention_of(window)
    if not found.between.any():
        return []
    between = window.work.filter(pl.Series(found.between))
    products = window.work.filter(pl.Series(found.products))
    between_ns, products_ns = int(between["dur_ns"].sum()), int(products["dur_ns"].sum())
    evidence = [
        Evidence("attention per step", window.per_device_step(between_ns + products_ns), "ns"),
        Evidence(
            "of this, on the scores between the products", window.per_device_step(between_ns), "ns"
        ),
        Evidence("softmax kernels per step", _softmaxes(between) / window.steps, "count"),
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
    places = places_of_work(window.trace, products).drop_nulls()
    if len(places):
        evidence.append(Evidence("in", str(places.mode().sort()[0]), "text"))
    share = window.device_share(between_ns + products_ns)
    if window.device_share(between_ns) < subject.thresholds.saving_low:
        return []
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph)
        .scale_work(window.nodes(between), 0.0)
        .scale_host(window.spans_of_sources(between)),
        rule=ID,
        title=f"attention runs unfused and takes {percent(share)} of the step",
        assumption=(
            "a fused kernel scales, masks and softmaxes the scores within the products, which "
            "take as long as now"
        ),
        evidence=tuple(evidence),
        advice=advice,
    )


def attention_of(window: WindowView) -> UnfusedAttention:
    """The unfused attention among the window's GPU work, found once."""
    return window.once(_attention)


def _attention(window: WindowView) -> UnfusedAttention:
    return unfused_attention(window.trace, window.work, fusible_of(window))


def _softmaxes(between: pl.DataFrame) -> int:
    return between.filter(pl.col("group") == "softmax").height
