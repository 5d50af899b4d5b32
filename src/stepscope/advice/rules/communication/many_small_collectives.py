"""Many small collectives: tensors are sent one by one instead of in buckets.

Measured as collectives of one kind that are launched one right after the other: between two of them
lie at most two pieces of other GPU work, such as the copies before and after. Only rows of at least
ten count whose median collective is short. Collectives between the layers of a model, as of tensor
parallelism, have more work between them and do not count. The saving assumes that a few large
collectives take as long on the GPU as the small ones together, and a twentieth of the host's time.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.evidence.point_to_point import point_to_point
from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView
from stepscope.advice.finding import Evidence, Finding
from stepscope.analysis.graph.replay import unchanged
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.arrays.ordering import by_group_and_time
from stepscope.trace.schema import Kind

ID = "many-small-collectives"
_OTHER_WORK = 2
"""Pieces of other GPU work between two collectives of a row, at most."""
_LEAST_ROW = 10
_SHORT_NS = 200_000
"""Median of a row up to which it is the number of collectives that costs, not their bytes."""
_BUCKETED = 0.05
_ADVICE = (
    "Send many tensors at once: DistributedDataParallel instead of a loop over parameters, one "
    "flat buffer of all gradients, or larger buckets (DeepSpeed, Megatron)."
)


def find(subject: Subject) -> list[Finding]:
    """The finding, if many short collectives follow one another in a step."""
    window = subject.window
    if window is None or not window.has_gpu:
        return []
    if not (window.work["kind"] == Kind.COMMUNICATION.value).any():
        return []
    small = _in_rows(window)
    per_step = len(small) / window.steps
    if per_step < subject.thresholds.small_collectives:
        return []
    spans = window.trace.columns("start_ns", "lane_id")[small["launch"]]
    ends = small.with_columns(called_ns=spans["start_ns"], thread=spans["lane_id"])
    rows = ends.group_by("row").agg(pl.col("called_ns").min(), last_ns=pl.col("called_ns").max())
    host = window.spans(rows.select(start_ns="called_ns", end_ns="last_ns"))
    threads = tuple(ends["thread"].unique().sort().to_list())
    kind = small["group"].mode().sort()[0]
    mean_ns = round(float(small["dur_ns"].to_numpy().mean()))
    return replayed_finding(
        subject,
        window,
        unchanged(window.graph).scale_host(host, _BUCKETED, lanes=threads),
        rule=ID,
        about_collectives=True,
        title=f"{per_step:.0f} small collectives per step, one after the other",
        assumption="in a few large ones they take the same time on the GPU and a twentieth of the "
        "host's",
        evidence=(
            Evidence("small collectives in a row, per step", per_step, "count"),
            Evidence("mostly", kind, "text"),
            Evidence("mean length on the GPU", mean_ns, "ns"),
            Evidence("host time from the first to the last, per step",
                     window.per_step(host.total_ns), "ns"),
        ),
        advice=_ADVICE,
    )  # fmt: skip


def _in_rows(window: WindowView) -> pl.DataFrame:
    """Collectives of `window.work` in rows of short ones, with the number of their `row`."""
    columns = ["device", "group", "step", "launch", "dur_ns", "start_ns", "kind"]
    exchanges = pl.Series(point_to_point(window).is_one[window.work["node"].to_numpy()])
    launched = window.work.select(columns).filter(~exchanges).drop_nulls("launch")
    communicates = filled(launched["kind"] == Kind.COMMUNICATION.value, value=False)
    # The place of each collective among all work, sorted as a table would take far longer.
    called_ns = window.trace.columns("start_ns")["start_ns"].to_numpy()[launched["launch"]]
    device = filled(launched["device"], -1)
    order = by_group_and_time(device, called_ns, launched["start_ns"].to_numpy())
    place = np.flatnonzero(communicates[order])
    ordered = launched[order[place]].with_columns(place=pl.Series(place))
    follows = (
        (pl.col("place").diff() <= _OTHER_WORK + 1)
        & (pl.col("group") == pl.col("group").shift())
        & (pl.col("device") == pl.col("device").shift())
        & (pl.col("step") == pl.col("step").shift())
    )
    rows = ordered.with_columns(row=(~follows.fill_null(value=False)).cum_sum())
    return rows.filter(
        pl.len().over("row") >= _LEAST_ROW, pl.col("dur_ns").median().over("row") <= _SHORT_NS
    )
