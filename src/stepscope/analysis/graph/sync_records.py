"""What the recorder itself says of synchronisation: which stream, and which work, was waited for.

Recorders write such records (`cuda_sync`) where they were asked to: torch with
`_ExperimentalConfig(enable_cuda_sync_events=True)`, Nsight Systems always. Each bears the
correlation of the call that made it. Its name says what kind it is:

Stream Sync
    The host waits for the work that the stream had been given before the call.
Event Sync
    The host waits for the work that the event's stream had been given before the event was
    recorded (`cudaEventRecord`).
Context Sync
    The host waits for everything that the device had been given before the call.
Stream Wait Event
    What the stream is given after the call waits for the work that the event's stream had been
    given before the event was recorded.

Torch names the event's stream and the call that recorded it. Nsight names neither, only the stream
that waits. What a record does not say is left null, and the graph falls back on the times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.calls.operands import whole_number
from stepscope.analysis.graph.blocking_calls import (
    DEVICE_SYNC,
    EVENT_SYNC,
    STREAM_SYNC,
    STREAM_WAIT,
)
from stepscope.analysis.graph.threads import CLOCK_SKEW_NS
from stepscope.analysis.graph.work import StepWork
from stepscope.analysis.selection.names import is_call
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

_ROLES = {
    "Stream Sync": STREAM_SYNC,
    "Event Sync": EVENT_SYNC,
    "Context Sync": DEVICE_SYNC,
    "Stream Wait Event": STREAM_WAIT,
}
_NO_LANE = -1

SYNC_RECORDS: dict[str, pl.DataType | type[pl.DataType]] = {
    "call": pl.Int64,  # the call that made it; null: not in the file
    "role": pl.String,
    "call_ns": pl.Int64,  # when that call began
    "device": pl.Int64,
    "waiting_lane": pl.Int64,  # of a stream wait the stream that waits; -1: it has no work here;
    # null: streams of two processes bear its number
    "awaited_lane": pl.Int64,  # the stream waited for; -1: it has no work here; null: not known
    "until_ns": pl.Int64,  # what it was given before this moment is waited for
}
"""One row per record, in order of the calls."""


def read_sync_records(trace: Trace, work: StepWork) -> pl.DataFrame:
    """Read the records, with streams as lanes of the work.

    Returns:
        Columns `SYNC_RECORDS`.
    """
    role = pl.col("name").replace_strict(_ROLES, default=None, return_dtype=pl.String)
    has_role = (pl.col("category") == Category.DEVICE_SYNC.value) & role.is_not_null()
    known = trace.name_rows.filter(has_role).select("name_id", role=role)
    if known.is_empty():
        return pl.DataFrame(schema=SYNC_RECORDS)
    columns = trace.events.select("event", "name_id", "device", "stream", "start_ns", "category")
    records = (
        pl.concat([columns, trace.derived.select("launch")], how="horizontal")
        .filter(pl.col("category") == Category.DEVICE_SYNC.value)
        .collect()
        .join(known, on="name_id", maintain_order="left")
    )

    recorded = (
        trace.args.filter(pl.col("event").is_in(records["event"].implode()))
        .select(
            "event",
            event_stream=whole_number("wait_on_stream"),
            recorded_by=whole_number("wait_on_cuda_event_record_corr_id"),
        )
        .collect()
    )
    calls = trace.events.select(launch="event", call_lane="lane_id", call_start="start_ns").filter(
        pl.col("launch").is_in(records["launch"].drop_nulls().unique().implode())
    )
    processes = trace.lanes.select(call_lane="lane_id", process="pid")
    records = (
        records.join(recorded, on="event", how="left", maintain_order="left")
        .join(
            _recording_calls(trace, recorded["recorded_by"]),
            on="recorded_by",
            how="left",
            maintain_order="left",
        )
        .join(calls.collect(), on="launch", how="left", maintain_order="left")
        .join(processes, on="call_lane", how="left", maintain_order="left")
        # The record's own time is that of the call.
        .with_columns(call_ns=pl.coalesce("call_start", "start_ns"))
        .with_columns(
            awaited_stream=pl.when(pl.col("role") == STREAM_SYNC)
            .then("stream")
            .when(pl.col("role").is_in([EVENT_SYNC, STREAM_WAIT]) & (pl.col("event_stream") >= 0))
            .then("event_stream"),
            until_ns=pl.when(pl.col("role").is_in([STREAM_SYNC, DEVICE_SYNC]))
            .then("call_ns")
            .otherwise("recorded_ns"),
        )
    )
    lanes = _lanes(trace, work)
    records = _with_device_of_process(records, lanes)
    waiting = _lane_of(records, lanes, "stream")
    awaited = _lane_of(records, lanes, "awaited_stream")
    is_known = pl.col("awaited_stream").is_not_null() & pl.col("until_ns").is_not_null()
    return (
        records.with_columns(
            call=pl.col("launch"),
            waiting_lane=pl.when(pl.col("role") == STREAM_WAIT).then(waiting),
            awaited_lane=pl.when(is_known).then(awaited),
        )
        .sort("call_ns", "call", "event")
        .select(pl.col(name).cast(dtype) for name, dtype in SYNC_RECORDS.items())
    )


def _recording_calls(trace: Trace, correlations: pl.Series) -> pl.DataFrame:
    """When each event was recorded, by the correlation of the call that did: recorded_by, …_ns."""
    wanted = correlations.drop_nulls().unique()
    names = trace.names.filter(
        is_call(),
        pl.col("name").str.contains("EventRecord"),
    ).select("name_id")
    return (
        trace.events.filter(
            pl.col("name_id").is_in(names.collect()["name_id"].implode()),
            pl.col("correlation").cast(pl.Int64, strict=False).is_in(wanted.implode()),
        )
        .select(
            recorded_by=pl.col("correlation").cast(pl.Int64, strict=False), recorded_ns="start_ns"
        )
        .collect()
        .unique("recorded_by", keep="first", maintain_order=True)
    )


def _lanes(trace: Trace, work: StepWork) -> pl.DataFrame:
    """lane, device, stream and launching process (null: not known) of each lane with work."""
    lanes = pl.DataFrame({"lane": work.lane, "call_lane": work.call_lane})
    processes = trace.lanes.select(call_lane=pl.col("lane_id").cast(pl.Int64), process="pid")
    streams = trace.lanes.select(
        pl.col("lane_id").cast(pl.Int64).alias("lane"), pl.col("device").cast(pl.Int64), "stream"
    )
    return (
        lanes.group_by("lane")
        .agg(pl.col("call_lane").max())
        .join(processes, on="call_lane", how="left")
        .join(streams, on="lane")
        .drop("call_lane")
    )


def _with_device_of_process(records: pl.DataFrame, lanes: pl.DataFrame) -> pl.DataFrame:
    """The records with the device that their process works on, where it is a single one.

    Nsight numbers devices in these records as the process sees them, and in all others as the
    machine does.
    """
    single = (
        lanes.drop_nulls("process")
        .group_by("process")
        .agg(pl.col("device").n_unique().alias("devices"), pl.col("device").first().alias("only"))
        .filter(pl.col("devices") == 1)
        .select("process", "only")
    )
    return (
        records.with_columns(pl.col("device").cast(pl.Int64))
        .join(single, on="process", how="left", maintain_order="left")
        .with_columns(device=pl.coalesce("only", "device"))
    )


def _lane_of(records: pl.DataFrame, lanes: pl.DataFrame, stream: str) -> pl.Series:
    """The lane of a stream of each record; null where streams of two processes bear its number."""
    place = ["device", "stream"]
    asked = records.select("device", "process", stream=stream)
    of_process = lanes.unique([*place, "process"], keep="none").drop_nulls("process")
    of_anybody = lanes.unique(place, keep="none").select(*place, alone="lane", owner="process")
    taken = lanes.select(*place, is_taken=pl.lit(value=True)).unique()
    # Another process' stream of this number is another stream.
    may_be = pl.col("owner").is_null() | pl.col("process").is_null()
    return (
        asked.join(of_process, on=[*place, "process"], how="left", maintain_order="left")
        .join(of_anybody, on=place, how="left", maintain_order="left")
        .join(taken, on=place, how="left", maintain_order="left")
        .with_columns(
            alone=pl.when(may_be).then("alone"),
            none=pl.when(pl.col("is_taken").is_null() | pl.col("owner").is_not_null()).then(
                pl.lit(_NO_LANE)
            ),
        )
        .select(pl.coalesce("lane", "alone", "none").cast(pl.Int64).alias("lane"))
        .to_series()
    )


@dataclass(frozen=True)
class RecordedWaits:
    """Waits between streams as recorded, in rows of the work.

    Attributes:
        calls: The calls that made streams wait and of which the records say which stream did.
        waiting: First work that the waiting stream was given after each call.
        unexplained: First work after those calls of which nothing says what they waited for.
        are_complete: Whether the records name what was waited for, so that nothing is to be
            inferred from the times.
    """

    calls: Int64Array
    waiting: Int64Array
    awaited: Int64Array
    unexplained: Int64Array
    are_complete: bool


def recorded_waits(records: pl.DataFrame, work: StepWork) -> RecordedWaits:
    """Find the work that waited, and what it waited for.

    Args:
        records: Columns `SYNC_RECORDS`.
    """
    waits = records.filter(pl.col("role") == STREAM_WAIT, pl.col("waiting_lane").is_not_null())
    called = waits["call_ns"].to_numpy()
    until = filled(waits["until_ns"], 0)
    waiting_lane = waits["waiting_lane"].to_numpy()
    is_told = waits["awaited_lane"].is_not_null().to_numpy()
    awaited_lane = filled(waits["awaited_lane"], _NO_LANE)
    waiting = np.full(len(waits), -1, np.int64)
    awaited = np.full(len(waits), -1, np.int64)
    for first, last in work.streams():
        launched = np.maximum.accumulate(work.call_start_ns[first:last])
        rows = np.nonzero(waiting_lane == work.lane[first])[0]
        next_row = first + np.searchsorted(launched, called[rows], side="right")
        waiting[rows] = np.where(next_row < last, next_row, -1)
        rows = np.nonzero(awaited_lane == work.lane[first])[0]
        before = first + np.searchsorted(launched, until[rows]) - 1
        awaited[rows] = np.where(before >= first, before, -1)
    pairs = (waiting >= 0) & (awaited >= 0) & (waiting_lane != awaited_lane)
    # A record that the times contradict is not believed.
    pairs &= (
        work.end_ns[np.maximum(awaited, 0)]
        <= (work.start_ns[np.maximum(waiting, 0)] + CLOCK_SKEW_NS)
        if len(work)
        else False
    )
    return RecordedWaits(
        calls=waits["call"].drop_nulls().to_numpy(),
        waiting=waiting[pairs],
        awaited=awaited[pairs],
        unexplained=np.unique(waiting[(waiting >= 0) & ~is_told]),
        are_complete=bool(is_told.any()),
    )
