"""Launches of captured graphs (CUDA and HIP graphs): one call starts many kernels."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import polars as pl

from stepscope.analysis.selection.names import is_call, names_that
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.model import Trace

_GRAPH_LAUNCH = r"GraphLaunch"


class GraphPlace(IntEnum):
    """Where a piece of GPU work stands in a captured graph."""

    NONE = 0
    FIRST = 1
    INSIDE = 2


def launches_graphs(trace: Trace) -> bool:
    """Whether any call of the trace launches a captured graph."""
    return bool(_graph_launch_names(trace).any())


def graph_places(trace: Trace, work: pl.DataFrame) -> Int64Array:
    """The `GraphPlace` of each row: launched by itself, first of a graph launch, or later in it.

    Args:
        work: GPU work with `launch` and `start_ns`.
    """
    place = np.zeros(len(work), np.int64)
    is_graph_launch = _graph_launch_names(trace)
    if not is_graph_launch.any() or work.is_empty():
        return place
    launch = filled(work["launch"], -1)
    name_id = trace.columns("name_id")["name_id"].to_numpy()
    of_graph = (launch >= 0) & is_graph_launch[name_id[np.maximum(launch, 0)]]
    place[of_graph] = GraphPlace.INSIDE
    place[of_graph & is_first_of_launch(work)] = GraphPlace.FIRST
    return place


def is_first_of_launch(work: pl.DataFrame) -> BoolArray:
    """For each row whether none of the same launching call began earlier; true without a call."""
    rows = work.select("launch", "start_ns").with_row_index("row")
    first = (
        rows.drop_nulls("launch")
        .sort("start_ns", "row")
        .unique("launch", keep="first", maintain_order=True)["row"]
    )
    found = work["launch"].is_null().to_numpy().copy()
    found[first.to_numpy()] = True
    return found


def _graph_launch_names(trace: Trace) -> BoolArray:
    return names_that(trace, is_call() & pl.col("name").str.contains(_GRAPH_LAUNCH))
