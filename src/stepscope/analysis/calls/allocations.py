"""Memory as the trace shows it: the driver's calls, and the allocator's own events.

Two layers allocate. The caching allocator serves tensors and notes each allocation and each free as
a `[memory]` instant (`profile_memory=True`), with its totals. Where it has nothing left, it gets
memory from the driver, by calls such as cudaMalloc, which the trace shows as calls of the runtime.
"""

from __future__ import annotations

import polars as pl

from stepscope.analysis.calls.operands import whole_number
from stepscope.analysis.selection.names import is_call
from stepscope.analysis.selection.scope import memoized
from stepscope.trace.model import Trace

_QUESTIONS = "MemGetInfo"
_OF_THE_HOST = "(?i)host"
_GETS_OR_FREES = r"(Malloc|MemAlloc|Free)(Async|Managed|FromPoolAsync)?(_v\d+)?$|MemCreate|MemUnmap"
"""One call for each piece of memory: of create, map and set access, the first counts."""

MEMORY_EVENTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "lane_id": pl.UInt32,
    "time_ns": pl.Int64,
    "kind": pl.String,  # "gpu" or "cpu"
    "device": pl.Int64,
    "change_bytes": pl.Int64,  # negative: a free; null: not said
    "address": pl.Int64,
    "allocated_bytes": pl.Int64,  # in tensors, after it; null: the file has no totals
    "reserved_bytes": pl.Int64,  # of the device by the allocator, after it
}
"""One row per `[memory]` instant, in the order of the file."""

_FIELDS = {
    "change_bytes": "Bytes",
    "address": "Addr",
    "allocated_bytes": "Total Allocated",
    "reserved_bytes": "Total Reserved",
    "device": "Device Id",
    "device_type": "Device Type",
}
_CPU = 0


def is_allocation() -> pl.Expr:
    """Of rows of `names`: calls that get memory, map it or give it back, on device or host."""
    return (
        is_call()
        & (pl.col("group") == "allocation").fill_null(value=False)
        & ~pl.col("name").str.contains(_QUESTIONS, literal=True)
    )


def gets_or_frees_device_memory() -> pl.Expr:
    """Of calls with `group` and `name`: getting or giving back memory of the device, once each."""
    return (
        (pl.col("group") == "allocation").fill_null(value=False)
        & pl.col("name").str.contains(_GETS_OR_FREES)
        & ~pl.col("name").str.contains(_OF_THE_HOST)
    )


_AT_ONCE = 10_000
"""How many texts are decoded at once: their documents take many times their length."""


@memoized
def memory_events(trace: Trace) -> pl.DataFrame:
    """The allocator's events, of GPUs and of the host: columns `MEMORY_EVENTS`."""
    return _read(trace)


def _read(trace: Trace) -> pl.DataFrame:
    names = trace.name_rows.filter(trace.name_rows["name"] == "[memory]")["name_id"]
    if names.is_empty():
        return pl.DataFrame(schema=MEMORY_EVENTS)
    texts = trace.instants.filter(pl.col("name_id").is_in(names.implode()))
    kind = pl.when(pl.col("device_type") == _CPU).then(pl.lit("cpu")).otherwise(pl.lit("gpu"))
    rows = texts.select("lane_id", "time_ns", "args").collect()
    parts = [rows.slice(first, _AT_ONCE) for first in range(0, max(1, len(rows)), _AT_ONCE)]
    return (
        pl.concat(map(_decoded, parts))
        .with_columns(kind=kind, device=pl.col("device").fill_null(0))
        .select(pl.col(name).cast(dtype) for name, dtype in MEMORY_EVENTS.items())
    )


def _decoded(rows: pl.DataFrame) -> pl.DataFrame:
    """lane_id, time_ns and the numbers of each event; null where one is missing."""
    wanted = pl.Struct(dict.fromkeys(_FIELDS.values(), pl.Int64))
    whole = pl.col("args").str.json_decode(wanted)
    decoded = [whole.struct.field(key).alias(name) for name, key in _FIELDS.items()]
    try:
        return rows.select("lane_id", "time_ns", *decoded)
    except pl.exceptions.ComputeError:  # one text that is no JSON, or holds other than integers
        found = [whole_number(key).alias(name) for name, key in _FIELDS.items()]
        return rows.select("lane_id", "time_ns", *found)


@memoized
def memory_peaks(trace: Trace) -> pl.DataFrame:
    """The peaks of each GPU's memory: device, allocated_bytes, reserved_bytes, total_bytes.

    `total_bytes` is null where the file does not describe the device. Empty where the allocator's
    events have no totals. The events themselves are not kept: most reports ask for nothing else.
    """
    return (
        _read(trace)
        .filter(pl.col("kind") == "gpu", pl.col("device") >= 0)
        .drop_nulls(["allocated_bytes", "reserved_bytes"])
        .group_by(pl.col("device").cast(pl.Int32, strict=False))
        .agg(pl.col("allocated_bytes").max(), pl.col("reserved_bytes").max())
        .join(
            trace.devices.select("device", total_bytes="total_memory_bytes"),
            on="device",
            how="left",
        )
        .sort("device")
    )


def has_only_host_memory(trace: Trace) -> bool:
    """Whether the allocator's events are of the host, and none of a GPU."""
    if len(memory_peaks(trace)):  # most reports know them, and keep no events
        return False
    kinds = memory_events(trace)["kind"]
    return len(kinds) > 0 and not (kinds == "gpu").any()
