"""Pipeline bubbles: how long each stage waits for its neighbours and stands idle.

Definitions
    Point-to-point work is what sends and receives between stages (kernels of the kind send_recv).
    Pipeline span of a rank's step: from the start of its first computation or point-to-point work
    to the end of its last point-to-point work.
    Inside the span: compute; exposed point-to-point time, during which nothing is computed; other
    exposed communication and copies; idle time. They add up to the span.
    A send_recv kernel runs while it waits for the other stage, so a GPU that waits looks busy.
    Transfer: at most the shortest send_recv of the job for each of the rank's. What the exposed
    point-to-point time exceeds that by is waiting.
    Bubble: waiting plus idle, inside the span. Its share is of the span.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.blame.lanes import JobLanes
from stepscope.analysis.calls.collectives import POINT_TO_POINT, read_collectives
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.errors import UsageError
from stepscope.trace.arrays import intervals
from stepscope.trace.arrays.intervals import Intervals
from stepscope.trace.arrays.packed_columns import PackedColumns, table_of_ranks
from stepscope.trace.model import Trace

_COLUMNS = ("step", "span_ns", "compute_ns", "p2p_ns", "other_ns", "idle_ns", "count", "least_ns")

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "steps": pl.Int64,
    "span_ns": pl.Int64,  # per step, like the following
    "compute_ns": pl.Int64,
    "transfer_ns": pl.Int64,
    "wait_ns": pl.Int64,
    "other_ns": pl.Int64,
    "idle_ns": pl.Int64,
    "bubble_ns": pl.Int64,
    "bubble_share": pl.Float64,
}
"""One row per rank, the greatest bubble first."""

STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "step": pl.Int64,
    **{name: kind for name, kind in RANKS.items() if name not in {"rank", "steps"}},
}
"""One row per rank and step."""


@dataclass(frozen=True)
class PipelineBubbles:
    """The bubbles of a job's pipeline.

    Attributes:
        bubble_share: Bubbles of all ranks, as a part of their spans.
        transfer_ns: The shortest point-to-point work of the job.
        lanes: What the stages did in one step, for a picture; None where their clocks cannot be
            brought together.
    """

    bubble_share: float
    transfer_ns: int
    ranks: pl.DataFrame
    steps: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]
    lanes: JobLanes | None = field(default=None, metadata={"show": False})


def read_pipeline(trace: Trace, scope: Scope | None = None) -> PackedColumns | None:
    """The pipeline of a rank, a row per step; None without point-to-point work in steps."""
    work = gpu_work(trace, scope)
    rows = work.table.filter(pl.Series(work.in_steps), pl.col("step").is_not_null())
    # By kind: an all-to-all runs as the same kernel.
    kinds = read_collectives(trace, work.table)
    events = kinds.filter(pl.col("kind") == POINT_TO_POINT)["event"]
    is_p2p = pl.col("event").is_in(events.implode())
    spans = (
        rows.filter(is_p2p | (pl.col("kind") == "compute"))
        .group_by("step")
        .agg(
            start=pl.col("start_ns").min(),
            end=pl.col("end_ns").filter(is_p2p).max(),
            count=is_p2p.sum().cast(pl.Int64),
            least_ns=pl.col("dur_ns").filter(is_p2p).min(),
        )
        .filter(pl.col("count") > 0)
        .sort("step")
    )
    if spans.is_empty():
        return None
    start, end = spans["start"].to_numpy(), spans["end"].to_numpy()
    compute = _moments(rows.filter(pl.col("kind") == "compute"))
    p2p = intervals.difference(_moments(rows.filter(is_p2p)), compute)
    busy = _moments(rows)
    covered = [intervals.covered(one, start, end) for one in (compute, p2p, busy)]
    span = end - start
    columns = (
        spans["step"].to_numpy(), span, covered[0], covered[1],
        covered[2] - covered[0] - covered[1], span - covered[2],
        spans["count"].to_numpy(), spans["least_ns"].to_numpy(),
    )  # fmt: skip
    return PackedColumns.of(_COLUMNS, np.stack(columns))


def _moments(rows: pl.DataFrame) -> Intervals:
    return intervals.merge(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())


def find_bubbles(
    pipelines: dict[int, PackedColumns], scope: AnsweredScope, notes: tuple[str, ...] = ()
) -> PipelineBubbles:
    """Finds the bubbles of a pipeline."""
    if not pipelines:
        raise UsageError(
            "no rank has sends or receives (send_recv kernels) in its steps: this is no pipeline"
        )
    measured = table_of_ranks(dict(sorted(pipelines.items())))
    transfer = int(measured["least_ns"].to_numpy().min())
    limit = pl.col("count") * transfer
    steps = (
        measured.with_columns(transfer_ns=pl.min_horizontal("p2p_ns", limit))
        .with_columns(wait_ns=pl.col("p2p_ns") - pl.col("transfer_ns"))
        .with_columns(bubble_ns=pl.col("wait_ns") + pl.col("idle_ns"))
        .with_columns(bubble_share=pl.col("bubble_ns") / pl.col("span_ns"))
        .sort("rank", "step")
        .select(pl.col(name).cast(dtype) for name, dtype in STEPS.items())
    )
    times = [name for name in RANKS if name.endswith("_ns")]
    ranks = (
        steps.group_by("rank", maintain_order=True)
        .agg(
            pl.len().alias("steps"),
            (pl.col("bubble_ns").sum() / pl.col("span_ns").sum()).alias("bubble_share"),
            *(pl.col(name).mean().round() for name in times),
        )
        .sort("bubble_ns", "rank", descending=[True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in RANKS.items())
    )
    whole = int(steps["span_ns"].sum())
    return PipelineBubbles(
        bubble_share=int(steps["bubble_ns"].sum()) / whole if whole else 0.0,
        transfer_ns=transfer,
        ranks=ranks,
        steps=steps,
        scope=scope,
        notes=notes,
    )
