"""Synchronising calls of whoever made the recording, at its beginning and its end.

A profiler, or the script around it, synchronises the device before the first step and after the
last one. No step would make this call without being recorded. It is told by its place: no operator
is around it, and in the whole file nothing was launched before it, or nothing after it.
"""

from __future__ import annotations

import polars as pl

from stepscope.analysis.calls.places import outermost_operators
from stepscope.analysis.selection.gpu_work import recorded_work
from stepscope.analysis.selection.names import is_call
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category


def harness_synchronisations(trace: Trace) -> pl.Series:
    """Numbers of the synchronising calls at the edges of the recording."""
    sync = trace.names.filter(is_call(), pl.col("group") == "sync").select("name_id").collect()
    launches = recorded_work(trace)["launch"].drop_nulls().unique()
    if sync.is_empty() or launches.is_empty():
        return pl.Series([], dtype=pl.Int64)
    starts = trace.columns("start_ns")["start_ns"].gather(launches)
    first, last = starts.min(), starts.max()
    calls = (
        trace.events.filter(
            pl.col("name_id").is_in(sync["name_id"].implode()),
            (pl.col("start_ns") < first) | (pl.col("start_ns") > last),
        )
        .select("event")
        .collect()["event"]
        .cast(pl.Int64)
    )
    if calls.is_empty():
        return calls
    around = outermost_operators(trace, calls)
    names = trace.names.select("category").collect()["category"]
    ids = trace.columns("name_id")["name_id"].gather(around)
    return calls.filter(names.gather(ids) != Category.CPU_OP.value)
