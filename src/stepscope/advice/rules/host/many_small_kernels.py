"""Many small kernels: most kernels are so short that starting them is much of their cost.

Measured over the computing kernels shorter than 10 µs, without those of matrix products,
convolutions and attention, which nothing fuses with each other, and those of notable known
patterns, which have findings of their own (`fusible-pattern`). The saving assumes that fusing does
away with every second of them: half of their device time, and half of what their operators take on
the host. Kernels of a captured graph share one launch: of these only the device time.
"""

from __future__ import annotations

import polars as pl

from stepscope.advice.evidence.compiled_code import runs_compiled_code, what_is_left_out
from stepscope.advice.evidence.fusible_work import rows_of_notable_patterns
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding, short
from stepscope.analysis.calls.graph_launches import GraphPlace, graph_places
from stepscope.analysis.calls.kernel_origins import is_of_product
from stepscope.analysis.graph.replay import unchanged
from stepscope.run.figures import percent

ID = "many-small-kernels"


def find(subject: Subject) -> list[Finding]:
    """The finding, if small kernels are many and most, and fusing them would shorten the step."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    limits = subject.thresholds
    columns = ["node", "dur_ns", "name", "launch", "op", "start_ns"]
    can_be_fused = window.work["kind"] == "compute"
    can_be_fused &= ~pl.Series(is_of_product(window.trace, window.work))
    is_small = can_be_fused & (window.work["dur_ns"] < limits.small_kernel_ns)
    is_small &= pl.Series(~rows_of_notable_patterns(window, limits.saving_low))
    small = window.work.select(columns).filter(is_small)
    per_step = len(small) / window.steps
    share = len(small) / max(1, int(can_be_fused.sum()))
    if per_step < limits.small_kernel_count or share < limits.small_kernel_share:
        return []
    changes = (
        unchanged(window.graph)
        .scale_work(window.nodes(small), 0.5)
        .scale_host(window.spans_of_sources(_launched_alone(window, small)), 0.5)
    )
    top = small.group_by("name").len().sort("len", "name", descending=[True, False])
    return replayed_finding(
        subject,
        window,
        changes,
        rule=ID,
        title=(
            f"{percent(share)} of the kernels that could be fused are shorter than "
            f"{limits.small_kernel_ns // 1000} µs"
        ),
        assumption="fusing halves their number, on the GPU and on the host",
        evidence=(
            Evidence("small kernels per step", per_step, "count"),
            Evidence("share of those that could be fused", share, "share"),
            Evidence(
                "their device time per step",
                window.per_device_step(int(small["dur_ns"].sum())),
                "ns",
            ),
            Evidence("most often", short(top["name"][0]), "text"),
        ),
        advice=(
            f"Fuse them: {'' if runs_compiled_code(window) else 'torch.compile, '}fused optimizers "
            "and normalisations, foreach functions; or capture the step in a CUDA graph; or give "
            f"each kernel more work with a larger batch.{what_is_left_out(window)}"
        ),
    )


def _launched_alone(window: WindowView, small: pl.DataFrame) -> pl.DataFrame:
    """Those that no captured graph launches."""
    return small.filter(pl.Series(graph_places(window.trace, small) == GraphPlace.NONE))
