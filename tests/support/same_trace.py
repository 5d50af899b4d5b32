"""Compares two traces by what they hold, whatever the numbers of their names and lanes."""

from __future__ import annotations

import polars as pl

from stepscope.trace.model import Trace

_LANE = ["pid", "tid", "is_gpu", "lane_device", "lane_stream", "process_name", "thread_name"]


def content_of(trace: Trace) -> dict[str, pl.DataFrame]:
    """The tables of a trace with names and lanes in place of their numbers, in a fixed order."""
    names = trace.names.select("name_id", "name", "raw_category", of_name="category").collect()
    lanes = trace.lanes.rename({"device": "lane_device", "stream": "lane_stream"})

    def plain(table: pl.LazyFrame, *more: str) -> pl.DataFrame:
        joined = (
            table.collect()
            .join(names, on="name_id", how="left", maintain_order="left")
            .join(lanes, on="lane_id", how="left", maintain_order="left")
        )
        return joined.select("name", "raw_category", *_LANE, *more)

    events = trace.events.join(trace.args, on="event", how="left", maintain_order="left")
    times = ["time_ns"]
    order = ["name", "pid", "tid", *times, "args"]
    return {
        "events": plain(
            events, "category", "start_ns", "dur_ns", "correlation", "external_id", "device",
            "stream", "bytes", "args",
        ),
        "instants": plain(trace.instants, *times, "args").sort(*order),
        "counters": plain(trace.counters, *times, "args").sort(*order),
        "flows": plain(trace.flows, "flow_id", *times, "phase", "args").sort(
            "name", "flow_id", "phase", "pid", "tid", *times
        ),
        "metadata": trace.metadata.collect().sort("key", "value"),
    }  # fmt: skip
