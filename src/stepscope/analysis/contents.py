"""What a trace file holds: who wrote it, what it covers, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepscope.trace.categories import GPU_WORK
from stepscope.trace.model import Trace

_ACCELERATORS = (("hip", "ROCm"), ("cu", "CUDA"), ("ur", "XPU"), ("ze", "XPU"), ("mtia", "MTIA"))


@dataclass(frozen=True)
class Contents:
    """What is in one trace.

    Attributes:
        size_bytes: Size of the file as stored; None where it is no local file.
        store: The directory of its columnar store; None where it was read into memory.
        accelerator: CUDA, ROCm, XPU, MTIA, or None without calls of a device's runtime.
        base_time_ns: What to add to times to get Unix time; 0 where the file has no base.
        header: Plain values of the file's header (no lists, no objects).
        devices: Columns of `stepscope.trace.model.DEVICES`, and `events`, `busy_events`.
        steps: Columns of `schema.HOST_STEPS`.
        lanes: Columns of `schema.LANES`, and `events`.
        categories: `category`, `events`, `names`, `total_ns` (the sum of durations).
        problems: Columns of `schema.PROBLEMS`.
    """

    path: str
    size_bytes: int | None
    store: str | None
    producer: str
    accelerator: str | None
    rank: int | None
    world_size: int | None
    backend: str | None
    start_ns: int | None
    end_ns: int | None
    base_time_ns: int
    header: dict[str, object]
    devices: pl.DataFrame
    steps: pl.DataFrame
    lanes: pl.DataFrame
    categories: pl.DataFrame
    tables: pl.DataFrame
    problems: pl.DataFrame


@dataclass(frozen=True)
class Recorder:
    """Who recorded a trace, and where: the attributes of `Contents` by these names."""

    producer: str
    accelerator: str | None
    rank: int | None
    world_size: int | None
    backend: str | None
    header: dict[str, object]


def describe(trace: Trace) -> Contents:
    """Say what a trace holds."""
    names = trace.name_rows
    counts = (
        trace.events.group_by("category", "lane_id", "name_id")
        .agg(
            pl.len().alias("events"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("start_ns").min(),
            (pl.col("start_ns") + pl.col("dur_ns")).max().alias("end_ns"),
        )
        .collect()
    )
    location = Path(trace.path)
    return Contents(
        path=trace.path,
        size_bytes=location.stat().st_size if location.is_file() else None,
        store=None if trace.store is None else str(trace.store),
        **vars(recorder_of(trace)),
        start_ns=counts["start_ns"].min() if len(counts) else None,  # type: ignore[arg-type]
        end_ns=counts["end_ns"].max() if len(counts) else None,  # type: ignore[arg-type]
        base_time_ns=trace.base_time_ns,
        devices=_devices(trace, counts),
        steps=trace.steps,
        lanes=_with_events(trace.lanes, counts),
        categories=counts.group_by("category")
        .agg(
            pl.col("events").sum(),
            pl.col("name_id").n_unique().alias("names"),
            pl.col("total_ns").sum(),
        )
        .with_columns(pl.col("category").cast(pl.String))
        .sort("events", "category", descending=[True, False]),
        tables=_table_sizes(trace, names, counts),
        problems=trace.all_problems,
    )


def recorder_of(trace: Trace) -> Recorder:
    """Say who recorded a trace, and where; reads no events."""
    distributed = trace.header.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    return Recorder(
        producer=_producer(trace, trace.name_rows),
        accelerator=_accelerator(trace.name_rows),
        rank=_integer(distributed.get("rank")),
        world_size=_integer(distributed.get("world_size")),
        backend=backend if isinstance(backend := distributed.get("backend"), str) else None,
        header={
            key: value
            for key, value in trace.header.items()
            if isinstance(value, (str, int, float, bool)) and len(str(value)) <= 200
        },
    )


def _producer(trace: Trace, names: pl.DataFrame) -> str:
    export = trace.header.get("META_DATA_EXPORT")
    if isinstance(export, dict):
        product = export.get("EXPORT_PRODUCT_NAME", "Nsight Systems")
        return f"{product} {export.get('EXPORT_PRODUCT_VERSION', '')}".strip()
    if (names["raw_category"] == "py-spy").any():
        return "py-spy"
    spans = names.filter(pl.col("category") == "span")["name"]
    if spans.str.contains("PyTorch Profiler").any() or "schemaVersion" in trace.header:
        return "PyTorch profiler (Kineto)"
    if (names["category"] == "cpu_op").any():
        return "PyTorch profiler"
    return "unknown (a Chrome trace)"


def _accelerator(names: pl.DataFrame) -> str | None:
    calls = names.filter(pl.col("category").is_in(["runtime", "driver"]))["name"]
    for prefix, word in _ACCELERATORS:
        if calls.str.contains(f"^{prefix}[A-Za-z]").any():
            return word
    return None


def _devices(trace: Trace, counts: pl.DataFrame) -> pl.DataFrame:
    placed = counts.join(trace.lanes.select("lane_id", "device"), on="lane_id").drop_nulls("device")
    is_work = pl.col("category").is_in([category.value for category in GPU_WORK])
    per_device = placed.group_by("device").agg(
        pl.col("events").sum(), pl.col("events").filter(is_work).sum().alias("busy_events")
    )
    return (
        trace.devices.drop("properties")
        .join(per_device, on="device", how="left", maintain_order="left")
        .with_columns(pl.col("events", "busy_events").fill_null(0))
    )


def _with_events(lanes: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    per_lane = counts.group_by("lane_id").agg(pl.col("events").sum())
    return lanes.join(per_lane, on="lane_id", how="left", maintain_order="left").with_columns(
        pl.col("events").fill_null(0)
    )


def _table_sizes(trace: Trace, names: pl.DataFrame, counts: pl.DataFrame) -> pl.DataFrame:
    lazy = ("instants", "counters", "flows", "metadata")
    rows = [("events", int(counts["events"].sum())), ("names", len(names))]
    rows += [(name, int(getattr(trace, name).select(pl.len()).collect().item())) for name in lazy]
    rows.append(("lanes", len(trace.lanes)))
    return pl.DataFrame(rows, schema={"table": pl.String, "rows": pl.Int64}, orient="row")


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
