"""What is not part of the steady state: the extra time of odd steps, and one-off calls."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import polars as pl

from stepscope.advice.evidence.specific_causes import GREW_BY, GREW_MOST
from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.finding import Evidence, short
from stepscope.analysis.calls.one_off import one_off_calls
from stepscope.analysis.host.causes import cause_names
from stepscope.analysis.selection.partition import IDLE_LABELS, ONE_OFF
from stepscope.analysis.timeline import break_down_devices
from stepscope.run.figures import duration
from stepscope.trace.arrays import intervals


def extra_time(window: WindowView, step: int) -> tuple[Evidence, ...]:
    """The part that grew most in a step, compared with the median of the others; if it is known."""
    parts = _parts_of_steps(window)
    row = parts.filter(pl.col("step") == step).drop("step")
    if row.is_empty():
        return ()
    usual = parts.filter(pl.col("step") != step).drop("step").median()
    beyond = {name: row[name][0] - (usual[name][0] or 0) for name in row.columns}
    name = max(beyond, key=lambda part: beyond[part])
    return (
        Evidence(GREW_MOST, name, "text"),
        Evidence(GREW_BY, round(beyond[name]), "ns"),
    )


def one_offs_of_steps(window: WindowView, steps: Collection[int]) -> pl.DataFrame:
    """The one-off calls in some steps, on the host; columns `one_off.ONE_OFFS`."""
    rows = one_off_calls(window.trace)
    host = window.trace.steps.filter(pl.col("step").is_in(list(steps)))
    times = intervals.merge(host["start_ns"].to_numpy(), host["end_ns"].to_numpy())
    return rows.filter(pl.Series(intervals.contains(times, rows["start_ns"].to_numpy())))


def one_off_parts(rows: pl.DataFrame) -> tuple[Evidence, ...]:
    """What one-off calls cost beyond their like, by what they are, the most expensive first.

    Args:
        rows: The calls, with the columns of `one_off.ONE_OFFS`.
    """
    cost = (pl.col("end_ns") - pl.col("start_ns") - pl.col("usual_ns")).clip(lower_bound=0)
    parts = (
        rows.with_columns(cost=cost)
        .sort("cost", descending=True)
        .group_by("kind", maintain_order=True)
        .agg(
            pl.col("cost").sum(),
            pl.col("what", "usual_ns").first(),
            longest=pl.col("cost").first() + pl.col("usual_ns").first(),
            calls=pl.len(),
        )
        .sort("cost", descending=True)
    )
    found: list[Evidence] = []
    for kind, total, what, usual, longest, calls in parts.select(
        "kind", "cost", "what", "usual_ns", "longest", "calls"
    ).iter_rows():
        found.append(Evidence(kind, total, "ns"))
        text = f"{short(what)}, {duration(longest)}"
        if usual:
            text += f" where {duration(usual)} is usual"
        if calls > 1:
            text += f", the longest of {calls}"
        found.append(Evidence(f"{kind}, by", text, "text"))
    return tuple(found)


@once
def _parts_of_steps(window: WindowView) -> pl.DataFrame:
    whole = window.whole
    if whole.has_gpu:
        parts = break_down_devices(whole.timeline, whole.idle).steps.drop("total_ns")
        once = (
            whole.idle.steps.group_by("step")
            .agg((pl.col(f"{ONE_OFF}_ns").sum() // pl.len()).alias(IDLE_LABELS[ONE_OFF]))
            .with_columns(pl.col("step").cast(pl.Int64))
        )
        return parts.join(once, on="step", how="left", maintain_order="left")
    graph = whole.graph
    names = cause_names(has_gpu=False, has_stacks=graph.host.has_stacks)
    divided = graph.host.divide(graph.main_lane, graph.step_starts_ns, graph.step_ends_ns)
    columns = dict(zip(names, divided, strict=True))
    return pl.DataFrame({"step": np.array(graph.steps, np.int64), **columns})
