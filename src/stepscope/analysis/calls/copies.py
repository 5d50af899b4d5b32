"""Copies between host and device whose call holds the host up until they are done."""

from __future__ import annotations

import polars as pl

from stepscope.trace.arrays.nullable import filled
from stepscope.trace.model import Trace

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
