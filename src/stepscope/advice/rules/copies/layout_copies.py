"""Layout copies: kernels that only change how tensors lie in memory.

Measured as their time on the device, see `calls.layout_copies`. The saving assumes that they are
not needed.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.calls.kernel_origins import operator_names, places_of_work, shares_of
from stepscope.analysis.calls.layout_copies import OF_CONVOLUTIONS, are_layout_copies
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.selection.names import by_distinct_name
from stepscope.run.figures import percent
from stepscope.trace.arrays.intervals import BoolArray

ID = "layout-copies"
_CHANNELS_LAST = (
    "Keep one memory format from the input to the loss: model.to(memory_format="
    "torch.channels_last) and the same for the images, so that the convolutions need no "
    "transposes."
)
_STRIDES = (
    "Find the contiguous(), clone() and reshape() calls named in the evidence and drop those that "
    "the next operator does not need: scaled_dot_product_attention and matrix products take "
    "strided tensors, and torch.compile fuses the copies that remain."
)


def find(subject: Subject) -> list[Finding]:
    """The finding, if the step is notably shorter without them."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    copies = window.work.filter(pl.Series(layout_copies_of(window)))
    if copies.is_empty():
        return []
    total_ns = int(copies["dur_ns"].sum())
    share = window.device_share(total_ns)
    if share < subject.thresholds.saving_low:
        return []
    of_convolutions = by_distinct_name(copies, pl.col("name").str.contains(OF_CONVOLUTIONS))
    is_about_convolutions = 2 * int(copies["dur_ns"].filter(of_convolutions).sum()) > total_ns
    evidence = [
        Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
        Evidence("kernels per step", len(copies) / window.steps, "count"),
    ]
    operators = shares_of(operator_names(window.trace, copies), copies["dur_ns"])
    places = shares_of(places_of_work(window.trace, copies), copies["dur_ns"])
    window.return_freed_memory()  # the places were found among all events
    evidence += [Evidence("launched by", operators, "text")] if operators else []
    evidence += [Evidence("in", places, "text")] if places else []
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph)
        .scale_work(window.nodes(copies), 0.0)
        .scale_host(window.spans_of_sources(copies)),
        rule=ID,
        title=f"{percent(share)} of the step only rearranges tensors in memory",
        assumption="none of these copies is needed, on the GPU or on the host",
        is_upper_bound=True,
        evidence=tuple(evidence),
        advice=_CHANNELS_LAST if is_about_convolutions else _STRIDES,
    )


def layout_copies_of(window: WindowView) -> BoolArray:
    """Which rows of the window's GPU work are layout copies, found once."""
    return window.once(_layout_copies)


def _layout_copies(window: WindowView) -> BoolArray:
    return are_layout_copies(window.trace, window.work)
