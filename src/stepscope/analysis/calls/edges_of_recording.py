"""Synchronising calls of whoever made the recording, at its beginning and its end.

A profiler, or the script around it, synchronises the device before the first step and after the
last one. No step would make this call without being recorded. It is recognised by its place: no
operator is around it, and in the whole file nothing was launched before it, or nothing after it.
"""

from __future__ import annotations

import polars as pl

from stepscope.analysis.calls.places import outermost_operators
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.names import events_named, is_call
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category


def harness_synchronisations(trace: Trace) -> pl.Series:
    """Numbers of the synchronising calls at the edges of the recording."""
    launch = recorded_work(trace)["launch"]
    launches = launch.filter(launch.is_not_null()).to_numpy()
    calls = events_named(trace, is_call() & (pl.col("group") == "sync"))
    if not len(calls) or not len(launches):
        return pl.Series([], dtype=pl.Int64)
    starts = trace.columns("start_ns")["start_ns"].to_numpy()
    first, last = starts[launches].min(), starts[launches].max()
    edge = pl.Series(calls[(starts[calls] < first) | (starts[calls] > last)], dtype=pl.Int64)
    if edge.is_empty():
        return edge
    around = outermost_operators(trace, edge)
    ids = trace.columns("name_id")["name_id"][around]
    return edge.filter(trace.name_rows["category"][ids] != Category.CPU_OP.value)
