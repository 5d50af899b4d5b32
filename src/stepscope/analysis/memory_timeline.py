"""Memory as the trace records it: allocated and reserved over time, the peak, and who holds it.

Definitions
    The recorder writes a `[memory]` instant for each allocation and each free (profile_memory=True)
    with its signed size and the allocator's totals after it.
    allocated   Bytes in tensors; reserved: bytes that the caching allocator holds of the device.
    peak        The greatest total of allocated bytes; the first moment of it.
    of a step   What it began with counts. Events tell what is reserved, so what it began with is
                what the last event before it said, in the same way as a change of the reserve is
                one of the step whose event shows it.
    at the peak Allocations of the window that are still live at the peak, by the operator that
                made them. What was allocated before the window is listed as such: together they
                are the peak, byte for byte.
    Files without totals (before 2022) are summed up from zero: then everything is relative to the
    window's start, and a note says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.allocations import memory_events
from stepscope.analysis.calls.call_sites import call_sites
from stepscope.analysis.selection.gpu_work import check_steps, notes_on_steps
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.errors import UsageError
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.arrays.nullable import filled
from stepscope.trace.derive.nesting import innermost_at
from stepscope.trace.derive.steps import step_at
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

MOST_POINTS = 1000
"""Points of the curve; each is the maximum of its stretch of time, so that peaks survive."""
MOST_AT_PEAK = 50
BEFORE_WINDOW = "allocated before the window"
NO_OPERATOR = "outside operators"


@dataclass(frozen=True)
class MemoryTimeline:
    """Memory over time.

    Attributes:
        peak_allocated_bytes: Greatest of all devices' peaks; GPUs first: that of the CPU only
            where no GPU has any event. None without events.
        peak_reserved_bytes: Likewise.
        devices: One row per device (`kind` "gpu" or "cpu"): events, allocations, frees, first and
            last allocated_bytes, peak_allocated_bytes with peak_ns and peak_step,
            peak_reserved_bytes, capacity_bytes where the file states it, peak_share of it (of
            reserved bytes), times that the reserve grew and shrank.
        steps: Per device and host step: allocations, allocated bytes in all, start, end and peak of
            allocated bytes, peak of reserved bytes, times that the reserve grew and shrank.
        at_peak: Per device the operators that hold memory at the peak: operator (outermost) and
            inner operator, frame, allocations, live_bytes, peak_share.
        timeline: The curves: kind, device, time_ns, allocated_bytes, reserved_bytes.
        scope: What the answer covers; its events are the instants.
    """

    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    devices: pl.DataFrame
    steps: pl.DataFrame
    at_peak: pl.DataFrame
    timeline: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def memory_timeline(trace: Trace, scope: Scope | None = None) -> MemoryTimeline:
    """Follow the memory."""
    asked = scope or Scope()
    covered = check_steps(trace, asked)
    every, notes = _instants(trace)
    mine, excluded = _select(trace, every, asked)
    keys = ["kind", "device"]
    rows = mine.group_by(keys, maintain_order=True)
    devices = _devices(trace, mine)
    places = [_at_peak(trace, part, every) for _, part in rows]
    curves = [_curve(part) for _, part in rows]
    shown = devices.filter(pl.col("kind") == "gpu") if "gpu" in devices["kind"] else devices
    notes += notes_on_steps(trace)
    if every.is_empty():
        notes.append("no memory events: record with profile_memory=True")
    elif mine.is_empty():
        notes.append("no memory events in this scope")
    return MemoryTimeline(
        peak_allocated_bytes=_greatest(shown["peak_allocated_bytes"]),
        peak_reserved_bytes=_greatest(shown["peak_reserved_bytes"]),
        devices=devices,
        steps=_steps(mine),
        at_peak=pl.concat(places) if places else pl.DataFrame(schema=_AT_PEAK),
        timeline=pl.concat(curves) if curves else pl.DataFrame(schema=_CURVE),
        scope=AnsweredScope(
            asked,
            covered,
            tuple(mine.filter(pl.col("kind") == "gpu")["device"].unique().sort().to_list()),
            len(mine),
        ).leaving_out(excluded),
        notes=tuple(notes),
    )


_AT_PEAK: dict[str, pl.DataType | type[pl.DataType]] = {
    "kind": pl.String,
    "device": pl.Int64,
    "operator": pl.String,
    "inner_operator": pl.String,
    "frame": pl.String,
    "allocations": pl.Int64,
    "live_bytes": pl.Int64,
    "peak_share": pl.Float64,
}
_CURVE: dict[str, pl.DataType | type[pl.DataType]] = {
    "kind": pl.String,
    "device": pl.Int64,
    "time_ns": pl.Int64,
    "allocated_bytes": pl.Int64,
    "reserved_bytes": pl.Int64,
}


def _greatest(column: pl.Series) -> int | None:
    value = column.max()
    return int(value) if isinstance(value, int) else None


def _instants(trace: Trace) -> tuple[pl.DataFrame, list[str]]:
    """One row per memory event in order of time, with totals after it, and notes."""
    rows = (
        memory_events(trace)
        .drop_nulls("change_bytes")
        .sort("kind", "device", "time_ns", descending=[True, False, False], maintain_order=True)
    )
    notes: list[str] = []
    if rows["allocated_bytes"].null_count():
        notes.append("the file has no totals: bytes are relative to the start of the window")
        running = pl.col("change_bytes").cum_sum().over("kind", "device")
        rows = rows.with_columns(allocated_bytes=pl.col("allocated_bytes").fill_null(running))
    steps = trace.steps
    index = step_at(steps, rows["time_ns"].to_numpy())
    numbers = steps["step"].to_numpy() if len(steps) else np.zeros(1, np.int32)
    step = pl.Series(numbers[np.maximum(index, 0)]).cast(pl.Int32)
    same = (pl.col("kind") == pl.col("kind").shift(1)) & (
        pl.col("device") == pl.col("device").shift(1)
    )
    grew = pl.when(same).then(pl.col("reserved_bytes") - pl.col("reserved_bytes").shift(1))
    return (
        rows.with_columns(step=pl.select(pl.when(pl.Series(index >= 0)).then(step)).to_series())
        .with_columns(reserve_change=grew.fill_null(0))
        .with_columns(
            before_bytes=pl.col("allocated_bytes") - pl.col("change_bytes"),
            reserved_before_bytes=pl.col("reserved_bytes") - pl.col("reserve_change"),
        )
        .with_columns(row=pl.int_range(pl.len())),
        notes,
    )


def _select(trace: Trace, rows: pl.DataFrame, asked: Scope) -> tuple[pl.DataFrame, dict[str, int]]:
    excluded: dict[str, int] = {}
    if asked.devices is not None:
        recorded = rows.filter(pl.col("kind") == "gpu")["device"].unique().to_list()
        # Of a device that worked the memory may not have been recorded: then there is nothing to
        # tell, but nothing wrong with the question.
        known = {*recorded, *trace.devices.filter("is_used")["device"].to_list()}
        for device in asked.devices:
            if device not in known:
                raise UsageError(f"{trace.path}: no memory events on device {device}")
        kept = rows.filter(pl.col("kind") == "gpu", pl.col("device").is_in(list(asked.devices)))
        excluded["memory events of other devices"] = len(rows) - len(kept)
        rows = kept
    if asked.steps is not None:
        kept = rows.filter(pl.col("step").is_in(list(asked.steps)))
        excluded["memory events of other steps or of none"] = len(rows) - len(kept)
        rows = kept
    return rows, excluded


def _counts() -> list[pl.Expr]:
    change = pl.col("change_bytes")
    return [
        (change > 0).sum().cast(pl.Int64).alias("allocations"),
        (change < 0).sum().cast(pl.Int64).alias("frees"),
        change.filter(change > 0).sum().alias("requested_bytes"),
        (pl.col("reserve_change") > 0).sum().cast(pl.Int64).alias("reserve_grew"),
        (pl.col("reserve_change") < 0).sum().cast(pl.Int64).alias("reserve_shrank"),
    ]


def _peak() -> pl.Expr:
    """The greatest total; of a window that only frees, what it began with."""
    return pl.max_horizontal(pl.col("allocated_bytes").max(), pl.col("before_bytes").first())


def _reserved_peak() -> pl.Expr:
    """The greatest reserve, with what was reserved as the first event came."""
    return pl.max_horizontal(
        pl.col("reserved_bytes").max(), pl.col("reserved_before_bytes").max()
    ).alias("peak_reserved_bytes")


def _devices(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    at = pl.col("allocated_bytes").arg_max()
    capacity = trace.devices.select(
        kind=pl.lit("gpu"),
        device=pl.col("device").cast(pl.Int64),
        capacity_bytes="total_memory_bytes",
    )
    table = (
        rows.group_by("kind", "device", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("events"),
            *_counts(),
            pl.col("before_bytes").first().alias("first_bytes"),
            pl.col("allocated_bytes").last().alias("last_bytes"),
            _peak().alias("peak_allocated_bytes"),
            pl.col("time_ns").get(at).alias("peak_time_ns"),
            pl.col("step").get(at).alias("peak_step"),
            _reserved_peak(),
        )
        .join(capacity, on=["kind", "device"], how="left", maintain_order="left")
    )
    used = pl.max_horizontal("peak_reserved_bytes", "peak_allocated_bytes")
    return table.with_columns(
        peak_share=pl.when(pl.col("capacity_bytes") > 0).then(used / pl.col("capacity_bytes"))
    )


def _steps(rows: pl.DataFrame) -> pl.DataFrame:
    return (
        rows.filter(pl.col("step").is_not_null())
        .group_by("kind", "device", "step", maintain_order=True)
        .agg(
            *_counts(),
            pl.col("before_bytes").first().alias("start_bytes"),
            pl.col("allocated_bytes").last().alias("end_bytes"),
            _peak().alias("peak_allocated_bytes"),
            _reserved_peak(),
        )
    )


def _curve(rows: pl.DataFrame) -> pl.DataFrame:
    """At most 1000 points; each has the greatest values of its stretch, at its end."""
    first, last = int(rows["time_ns"][0]), int(rows["time_ns"][-1])
    width = max(1, -(-(last - first + 1) // MOST_POINTS))
    return (
        rows.group_by("kind", "device", (pl.col("time_ns") - first) // width, maintain_order=True)
        .agg(
            pl.col("time_ns").last().alias("last_ns"),
            pl.col("allocated_bytes", "reserved_bytes").max(),
        )
        .select("kind", "device", "last_ns", "allocated_bytes", "reserved_bytes")
        .rename({"last_ns": "time_ns"})
        .select(pl.col(name).cast(dtype) for name, dtype in _CURVE.items())
    )


def _at_peak(trace: Trace, rows: pl.DataFrame, every: pl.DataFrame) -> pl.DataFrame:
    """Which operators hold the memory of one device at its peak.

    Args:
        every: All events: what was freed in a step between those asked for is no longer held.
    """
    place = rows["allocated_bytes"].arg_max() or 0
    peak = int(rows["allocated_bytes"][place])
    at_start = int(rows["before_bytes"][0])
    if at_start > peak:  # the window only frees: its peak is what it began with
        place, peak = -1, at_start
    # Up to the peak, an address is live if the last event on it allocated.
    first = int(rows["row"][0])
    until = every.slice(first, int(rows["row"][place]) + 1 - first if place >= 0 else 0)
    address = filled(until["address"], -1)
    order = np.argsort(address, kind="stable")
    by_address = address[order]
    is_last = np.ones(len(order), np.bool_)
    is_last[:-1] = by_address[1:] != by_address[:-1]
    live = until[np.sort(order[is_last])].filter(pl.col("change_bytes") > 0)
    inner = _operator_at(trace, live["lane_id"].to_numpy(), live["time_ns"].to_numpy())
    named = _named_places(trace, inner)
    held = (
        pl.concat([live.select("change_bytes"), named], how="horizontal")
        .group_by("operator", "inner_operator", "frame")
        .agg(
            pl.len().cast(pl.Int64).alias("allocations"),
            pl.col("change_bytes").sum().alias("live_bytes"),
        )
        .sort(
            ["live_bytes", "operator", "inner_operator", "frame"],
            descending=[True, False, False, False],
        )
    )
    # What is beyond the limit of the table, and what was there before the window, has a row each.
    beyond = held.slice(MOST_AT_PEAK)
    before = peak - int(live["change_bytes"].sum())
    rest = pl.DataFrame(
        [
            ("all others", None, None, beyond["allocations"].sum(), beyond["live_bytes"].sum()),
            (BEFORE_WINDOW, None, None, None, before),
        ],
        schema={name: _AT_PEAK[name] for name in held.columns},
        orient="row",
    )
    return (
        pl.concat([held.head(MOST_AT_PEAK), rest])
        .filter(pl.col("live_bytes") != 0)
        .sort("live_bytes", descending=True, maintain_order=True)
        .with_columns(
            kind=pl.lit(rows["kind"][0]),
            device=pl.lit(rows["device"][0]),
            peak_share=pl.col("live_bytes") / max(1, peak),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in _AT_PEAK.items())
    )


def _operator_at(trace: Trace, lanes: npt.NDArray[np.uint32], times: Int64Array) -> Int64Array:
    """The innermost operator around moments of threads; -1: none."""
    if not len(times):
        return np.full(0, -1, np.int64)
    events = trace.columns("lane_id", "start_ns", "dur_ns", "category")
    start = events["start_ns"].to_numpy()
    end = start + events["dur_ns"].to_numpy()
    lane = events["lane_id"].to_numpy()
    is_operator = (events["category"] == Category.CPU_OP.value).to_numpy()
    near = np.nonzero(is_operator & (start <= times.max()) & (end >= times.min()))[0]
    # What happens as an operator ends still belongs to it.
    row = innermost_at(lane[near], start[near], end[near] + 1, lanes, times)
    return np.where(row >= 0, np.append(near, -1)[row], -1)


def _named_places(trace: Trace, operators: Int64Array) -> pl.DataFrame:
    """Outermost operator, operator and Python frame of each; fixed words where there is none."""
    known = operators >= 0
    events = pl.Series("event", np.maximum(operators, 0), dtype=pl.Int64)
    if trace.event_count == 0 or not len(events):
        return pl.DataFrame(
            schema={"operator": pl.String, "inner_operator": pl.String, "frame": pl.String}
        )
    places = call_sites(trace, events)
    ids = trace.columns("name_id")["name_id"].gather(events)
    inner = trace.name_rows["name"].gather(ids)
    mask = pl.Series(known)
    return pl.select(
        operator=pl.when(mask).then(places["operator"]).otherwise(pl.lit(NO_OPERATOR)),
        inner_operator=pl.when(mask).then(inner),
        frame=pl.when(mask).then(places["frame"]),
    )
