"""The idle time of every device as one list of segments, each with its cause."""

from __future__ import annotations

import polars as pl

from stepscope.analysis.host.activity import host_activity
from stepscope.analysis.host.idle_gaps import cut, find_gaps
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.trace.model import Trace


def idle_segments(trace: Trace) -> pl.DataFrame:
    """The idle time of every device cut by cause, over the file and all its steps.

    Columns `idle_gaps.SEGMENTS`, in the trace's own time, sorted by device and start.
    """
    work = gpu_work(trace)
    segments = cut(trace, find_gaps(trace, work), host_activity(trace, work.table))
    return segments.filter(pl.col("end_ns") > pl.col("start_ns")).sort("device", "start_ns")
