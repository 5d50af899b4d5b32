"""Calls of the runtime: launches of captured graphs, copies that block, a recorder's own waits.

A profiler, or the script around it, synchronises the device before the first step and after the
last one. No step would make this call without being recorded. It is recognised by its place: no
operator is around it, and in the whole file nothing was launched before it, or nothing after it.
A call that comes in the same place in most other steps, before all their launches or after them, is
the training's own.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import polars as pl

from stepscope.analysis.calls.call_sites import outermost_operators
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.names import events_named, is_call, names_that
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.derive.steps import step_at
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

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


TO_DEVICE, TO_HOST = "host_to_device", "device_to_host"


def blocking_copies(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """The copies between host and device that block, in the order of `work`.

    A copy blocks if one of these holds:

    * its record names pageable memory: the driver copies through a buffer of its own;
    * its call is not asynchronous (cudaMemcpy, hipMemcpyWithStream), whatever the memory;
    * its record does not say what memory it is, and the call returned after the copy had ended.

    Args:
        work: GPU work with group, name_id, end_ns and launch (see `recorded_work`).
    """
    copies = work.filter((work["group"] == TO_DEVICE) | (work["group"] == TO_HOST))
    if copies.is_empty():
        return copies
    names = trace.name_rows["name", "group"]
    launch = filled(copies["launch"], 0)
    calls = trace.columns("name_id", "start_ns", "dur_ns")[launch]
    call = names[calls["name_id"]]
    record, name = pl.col("record"), pl.col("name")
    waits = (
        (pl.col("group") == "copy_call")
        & name.str.contains("(?i)memcpy")
        & ~name.str.contains("(?i)async")
    )
    is_silent = ~record.str.contains("(?i)pageable|pinned")
    outlasts = pl.col("returned_ns") >= pl.col("end_ns")
    is_known = pl.col("launch").is_not_null()
    blocks = record.str.contains("(?i)pageable") | (is_known & (waits | (is_silent & outlasts)))
    known = copies["launch", "end_ns"].hstack(
        [
            names["name"][copies["name_id"]].alias("record"),
            (calls["start_ns"] + calls["dur_ns"]).alias("returned_ns"),
            *call,
        ]
    )
    return copies.filter(known.select(blocks=blocks)["blocks"])


_MOST = 0.5


@memoized
def harness_synchronisations(trace: Trace) -> pl.Series:
    """Numbers of the synchronising calls at the edges of the recording."""
    launch = recorded_work(trace)["launch"]
    launches = launch.filter(launch.is_not_null()).to_numpy()
    calls = events_named(trace, is_call() & (pl.col("group") == "sync"))
    if not len(calls) or not len(launches):
        return pl.Series([], dtype=pl.Int64)
    starts = trace.columns("start_ns")["start_ns"].to_numpy()
    first, last = starts[launches].min(), starts[launches].max()
    is_at_edge = (starts[calls] < first) | (starts[calls] > last)
    if is_at_edge.any():
        launched = np.sort(starts[launches], kind="stable")
        is_at_edge &= ~_recurs(trace, calls, starts[calls], launched)
    edge = pl.Series(calls[is_at_edge], dtype=pl.Int64)
    if edge.is_empty():
        return edge
    around = outermost_operators(trace, edge)
    ids = trace.columns("name_id")["name_id"][around]
    return edge.filter(trace.name_rows["category"][ids] != Category.CPU_OP.value)


def _recurs(
    trace: Trace, calls: Int64Array, called_ns: Int64Array, launched_ns: Int64Array
) -> BoolArray:
    begin, end = (trace.steps[name].to_numpy() for name in ("start_ns", "end_ns"))
    step = step_at(trace.steps, called_ns)
    rows = np.flatnonzero(step >= 0)
    before = np.searchsorted(launched_ns, called_ns[rows])
    name = trace.columns("name_id")["name_id"].to_numpy()[calls]
    recurs = np.zeros(len(calls), np.bool_)
    for border in (begin, end):
        mine = rows[np.searchsorted(launched_ns, border[step[rows]]) == before]
        for one in np.unique(name[mine]):
            alike = mine[name[mine] == one]
            others = len(np.unique(step[alike])) - 1
            recurs[alike] |= others > _MOST * (len(begin) - 1)
    return recurs
