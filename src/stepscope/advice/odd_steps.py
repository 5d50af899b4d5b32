"""What a step that is not part of the steady state spent its extra time in."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.finding import Evidence
from stepscope.advice.stalls import GREW_BY, GREW_MOST
from stepscope.advice.window_view import WindowView
from stepscope.analysis.breakdown import break_down_devices
from stepscope.analysis.host.causes import cause_names


def extra_time(window: WindowView, step: int) -> tuple[Evidence, ...]:
    """The part that grew most in a step, compared with the median of the others; if it is known.

    Args:
        window: The window.
        step: Number of the step.
    """
    parts = window.once(_parts_of_steps)
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


def _parts_of_steps(window: WindowView) -> pl.DataFrame:
    """One row per step of the whole window: step, and a column for each part of it."""
    whole = window.whole
    if whole.has_gpu:
        return break_down_devices(whole.timeline, whole.idle).steps.drop("total_ns")
    graph = whole.graph
    names = cause_names(has_gpu=False)
    divided = graph.host.divide(graph.main_lane, graph.step_starts_ns, graph.step_ends_ns)
    columns = dict(zip(names, divided, strict=True))
    return pl.DataFrame({"step": np.array(graph.steps, np.int64), **columns})
