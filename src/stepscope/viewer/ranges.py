"""What a range of time holds: the parts of each GPU's time, its kernels, and who launched them.

Definitions
    The parts of a device are those of `analysis/timeline.py` with the range as their window, and
    idle time is divided by the causes of `analysis/idle.py`: for the range of a device step they
    are what `stepscope show timeline --steps N` and `show idle --steps N` answer.
    The recording of a device lasts from its first GPU work or step to its last. What of the range
    lies outside it is `outside_ns`: nobody knows what the device did then.
    Kernels are cut to the range: `count` of them overlap it, `total_ns` is their time inside it.
    Operators, and annotations other than those of steps, stand with the GPU work in the range that
    they launched themselves, cut likewise, and with their own time on the host in the range,
    without the operators inside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.host.idle_gaps import IDLE_CAUSES
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.names import is_step, names_that
from stepscope.analysis.timeline import DeviceSets, device_sets
from stepscope.trace.derive.ancestors import nearest_above
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category
from stepscope.viewer.flame import Forest

MOST_ROWS = 500


@dataclass(frozen=True, eq=False)
class DeviceTimes:
    """What one device did when, and how long it was recorded."""

    sets: DeviceSets
    first_ns: int
    last_ns: int


@dataclass(frozen=True, eq=False)
class RangeBasis:
    """What ranges are measured on, worked out once per trace.

    Attributes:
        idle: Segments of idle time, `idle_gaps.SEGMENTS`; None: not worked out yet.
    """

    trace: Trace
    devices: tuple[DeviceTimes, ...]
    idle: pl.DataFrame | None


def range_basis(trace: Trace, idle: pl.DataFrame | None) -> RangeBasis:
    """Work out what ranges are measured on."""
    work = gpu_work(trace)
    found = []
    for sets in device_sets(work.table):
        spans = pl.concat([work.windows, work.device_steps]).filter(pl.col("device") == sets.device)
        found.append(DeviceTimes(sets, int(spans["start_ns"].min()), int(spans["end_ns"].max())))  # type: ignore[arg-type]
    return RangeBasis(trace, tuple(found), idle)


def range_totals(basis: RangeBasis, forest: Forest, start_ns: int, end_ns: int) -> dict[str, Any]:
    """What [start_ns, end_ns) holds, in the trace's own time."""
    return {
        "dur_ns": end_ns - start_ns,
        "devices": [_device(basis, one, start_ns, end_ns) for one in basis.devices],
        "kernels": _kernels(basis, start_ns, end_ns),
        "operators": _operators(basis, forest, start_ns, end_ns),
    }


def _device(basis: RangeBasis, device: DeviceTimes, start: int, end: int) -> dict[str, Any]:
    first, last = max(start, device.first_ns), max(start, min(end, device.last_ns))
    first = min(first, last)
    measured = device.sets.measure(np.array([first]), np.array([last]))
    numbers = {name: int(values[0]) for name, values in measured.items()}
    idle = None
    if basis.idle is not None:
        idle = dict.fromkeys(IDLE_CAUSES, 0)
        mine = basis.idle.filter(
            pl.col("device") == device.sets.device,
            pl.col("end_ns") > first,
            pl.col("start_ns") < last,
        )
        found = mine.group_by("cause").agg(_cut(first, last).sum().alias("ns"))
        idle |= {str(cause): int(ns) for cause, ns in found.iter_rows()}
    comm = numbers["total_comm_ns"]
    return {
        "device": device.sets.device,
        **numbers,
        "outside_ns": (end - start) - numbers["total_ns"],
        "overlap_share": numbers["overlap_ns"] / comm if comm else None,
        "idle": idle,
    }


def _cut(start: int, end: int) -> pl.Expr:
    return pl.min_horizontal("end_ns", pl.lit(end)) - pl.max_horizontal("start_ns", pl.lit(start))


def _overlapping(table: pl.DataFrame, start: int, end: int) -> pl.DataFrame:
    return table.filter(pl.col("start_ns") < end, pl.col("end_ns") > start)


def _kernels(basis: RangeBasis, start: int, end: int) -> dict[str, Any]:
    rows = _overlapping(gpu_work(basis.trace).table, start, end)
    table = (
        rows.group_by("name_id")
        .agg(
            pl.len().alias("count"),
            _cut(start, end).sum().alias("total_ns"),
            pl.col("dur_ns").max().alias("longest_ns"),
            pl.col("kind").first().cast(pl.String),
        )
        .sort("total_ns", "name_id", descending=[True, False])
    )
    return {
        "names": len(table),
        "count": len(rows),
        "total_ns": int(table["total_ns"].sum()),
        "rows": _named(basis, table.head(MOST_ROWS)),
    }


def _operators(basis: RangeBasis, forest: Forest, start: int, end: int) -> dict[str, Any]:
    host = _host_self(basis, forest, start, end)
    rows = _overlapping(gpu_work(basis.trace).table, start, end).drop_nulls("op")
    name_of = forest.name_id
    launched = (
        rows.select(name_id=pl.Series(name_of[rows["op"].to_numpy()]), ns=_cut(start, end))
        .group_by("name_id")
        .agg(pl.len().alias("kernels"), pl.col("ns").sum().alias("device_ns"))
    )
    table = (
        host.join(launched, on="name_id", how="full", coalesce=True)
        .with_columns(pl.exclude("name_id").fill_null(0))
        .sort("device_ns", "host_self_ns", "name_id", descending=[True, True, False])
    )
    return {
        "names": len(table),
        "device_ns": int(table["device_ns"].sum()),
        "host_self_ns": int(table["host_self_ns"].sum()),
        "rows": _named(basis, table.head(MOST_ROWS)),
    }


def _host_self(basis: RangeBasis, forest: Forest, start: int, end: int) -> pl.DataFrame:
    """Operators that overlap the range, by name: how many, and their own time in it."""
    is_op = forest.of_categories(Category.CPU_OP, Category.USER_ANNOTATION)
    is_op &= ~names_that(basis.trace, is_step())[forest.name_id]
    wanted = is_op & (forest.start_ns < end) & (forest.end_ns > start)
    rows = np.flatnonzero(wanted)
    above = nearest_above(forest.parent, rows, wanted)
    total = np.minimum(forest.end_ns[rows], end) - np.maximum(forest.start_ns[rows], start)
    own = total.copy()
    inside = above >= 0
    np.subtract.at(own, np.searchsorted(rows, above[inside]), total[inside])
    return (
        pl.DataFrame({"name_id": forest.name_id[rows], "own": np.maximum(own, 0)})
        .group_by("name_id")
        .agg(pl.len().alias("count"), pl.col("own").sum().alias("host_self_ns"))
    )


def _named(basis: RangeBasis, table: pl.DataFrame) -> list[dict[str, Any]]:
    names = basis.trace.name_rows["name"]
    return [{"name": names[row.pop("name_id")], **row} for row in table.to_dicts()]
