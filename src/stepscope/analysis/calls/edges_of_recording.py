"""Synchronising calls of whoever made the recording, at its beginning and its end.

A profiler, or the script around it, synchronises the device before the first step and after the
last one. No step would make this call without being recorded. It is recognised by its place: no
operator is around it, and in the whole file nothing was launched before it, or nothing after it.
A call that comes in the same place in most other steps, before all their launches or after them, is
the training's own.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.analysis.calls.places import outermost_operators
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.memoize import memoized
from stepscope.analysis.selection.names import events_named, is_call
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.derive.steps import step_at
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

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
        is_at_edge &= ~_recurs(trace, calls, starts[calls], np.sort(starts[launches]))
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
