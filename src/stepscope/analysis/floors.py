"""Floors: the least time in which the device could do each piece of its work.

Definitions
    Matrix products, convolutions and attention: max(FLOPs / peak, bytes / memory bandwidth), by the
    shapes and the type that they were called with (`flops`). The floor of a call is divided among
    its kernels as their durations are.
    Other kernels: the bytes of their operator's operands and results, each moved once, over the
    memory's bandwidth (`calls.moved_bytes`). Fills and copies within the device likewise.
    Collectives: their size over the best bus bandwidth that this trace shows in the same process
    group. How fast the link could be is not in a trace.
    Copies between host and device, and whatever has no shapes, no formula or no known device, have
    no floor. No floor is above the measured duration: a cache may serve some of the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.calls.call_sites import names_of_events
from stepscope.analysis.calls.collectives import POINT_TO_POINT
from stepscope.analysis.calls.moved_bytes import least_bytes
from stepscope.analysis.calls.operands import of_each_way
from stepscope.analysis.calls.operands_of_work import operands_as_categories
from stepscope.analysis.communication import analyse_communication
from stepscope.analysis.flops import analyse_flops
from stepscope.analysis.hardware.devices import DevicePeaks, peaks_of
from stepscope.analysis.selection.scope import Scope
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.classify import MATRIX_GROUPS
from stepscope.trace.model import Trace

_PRODUCTS, _OTHERS, _COLLECTIVES, _COPIES = (
    "matrix products, convolutions and attention",
    "other kernels",
    "collectives",
    "copies and fills",
)
KINDS = (_PRODUCTS, _OTHERS, _COLLECTIVES, _COPIES)
Float64Array = npt.NDArray[np.float64]
_WITHIN_THE_DEVICE = 2
"""How often a copy within the device moves each byte: it is read and written."""


@dataclass(frozen=True)
class KindOfWork:
    """How much of a kind of work has a floor.

    Attributes:
        name: One of `KINDS`.
        known_ns: Of that, what has a floor.
    """

    name: str
    total_ns: int
    known_ns: int
    floor_ns: int


@dataclass(frozen=True)
class WorkFloors:
    """The floors of some GPU work.

    Attributes:
        floor_ns: The least time of each piece, one value per row; as measured without a floor.
        better_ns: The same with products of 32-bit floats in the faster type that was asked about.
        types: Types of the products, the longest time first.
        bus_gb_per_s: The best bus bandwidth of each process group.
        has_shapes: Whether shapes of the operators that launched the work were recorded.
    """

    floor_ns: Int64Array
    better_ns: Int64Array
    kinds: tuple[KindOfWork, ...]
    types: tuple[str, ...]
    devices: dict[int, DevicePeaks | None]
    bus_gb_per_s: tuple[float, ...]
    has_shapes: bool

    @property
    def known_share(self) -> float:
        """Share of the time of all work that has a floor."""
        known = sum(kind.known_ns for kind in self.kinds)
        return known / max(1, sum(kind.total_ns for kind in self.kinds))


def find_floors(
    trace: Trace, work: pl.DataFrame, scope: Scope, better: str | None = None
) -> WorkFloors:
    """The floors of some GPU work.

    Args:
        work: GPU work with event, kind, group, device, dur_ns, op and bytes, one row per event.
        better: A type in which products of 32-bit floats could run: "tf32", "bfloat16", "float16".
    """
    used = set(work["device"].unique().to_list())
    devices = {device: peaks for device, peaks in peaks_of(trace).items() if device in used}
    measured = work["dur_ns"].to_numpy()
    products = _of_products(trace, work, scope, devices, better)
    floor = products["floor_ns"].to_numpy().copy()  # NaN: not known
    faster = products["better_ns"].to_numpy()
    others = np.isnan(floor)
    moved, has_shapes = _of_bytes(trace, work, devices)
    floor[others] = moved[others]
    collectives, bandwidths = _of_collectives(trace, work, scope)
    floor = np.where(np.isnan(collectives), floor, collectives)
    known = ~np.isnan(floor)
    least = np.minimum(measured, np.where(known, np.ceil(np.nan_to_num(floor)), measured))
    floor_ns = least.astype(np.int64)
    in_better = np.where(np.isnan(faster), floor_ns, np.ceil(np.nan_to_num(faster)))
    return WorkFloors(
        floor_ns,
        np.minimum(floor_ns, in_better.astype(np.int64)),
        _kinds(work, known, floor_ns),
        tuple(
            products.drop_nulls("type")
            .group_by("type")
            .agg(pl.col("dur_ns").sum())
            .sort("dur_ns", "type", descending=[True, False])["type"]
        ),
        devices,
        bandwidths,
        has_shapes,
    )


def _of_products(
    trace: Trace,
    work: pl.DataFrame,
    scope: Scope,
    devices: dict[int, DevicePeaks | None],
    better: str | None,
) -> pl.DataFrame:
    """dur_ns, type, floor_ns and better_ns, one row per row of `work`; NaN: not known."""
    report = analyse_flops(trace, scope)
    if report.work.is_empty():
        unknown = pl.lit(np.nan)
        return work.select(
            "dur_ns", type=pl.lit(None, pl.String), floor_ns=unknown, better_ns=unknown
        )
    limits = [
        (device, peaks.peak(better) if better else None, peaks.memory_gb_per_s)
        for device, peaks in devices.items()
        if peaks is not None
    ]
    schema = {"device": pl.Int32, "peak": pl.Float64, "bandwidth": pl.Float64}
    of_device = pl.DataFrame(limits, schema, orient="row")
    # A type of two bytes moves half of what 32-bit floats do; TF32 is stored in 32 bits.
    moved = pl.col("moved_bytes") / (1 if better == "tf32" else 2)
    is_float = (pl.col("type") == "float32") & pl.col("bound_ns").is_not_null()
    calls = (
        report.operators.join(of_device, on="device", how="left")
        .with_columns(
            faster=pl.when(is_float & pl.col("peak").is_not_null()).then(
                pl.max_horizontal(
                    pl.col("flops") / pl.col("peak") * 1e9, moved / pl.col("bandwidth")
                )
            )
        )
        .select(
            *("name", "dims", "type", "device"),
            bound=pl.col("bound_ns") / pl.col("count"),
            faster=pl.col("faster") / pl.col("count"),
        )
    )
    of_call = pl.col("dur_ns") / pl.col("dur_ns").sum().over("call")
    return (
        work.select("event", "dur_ns", "device")
        .join(report.work, on="event", how="left", maintain_order="left")
        .join(calls, on=["name", "dims", "type", "device"], how="left", maintain_order="left")
        .select(
            "dur_ns",
            "type",
            floor_ns=(pl.col("bound") * of_call).fill_null(np.nan),
            better_ns=(pl.col("faster") * of_call).fill_null(np.nan),
        )
    )


def _of_bytes(
    trace: Trace, work: pl.DataFrame, devices: dict[int, DevicePeaks | None]
) -> tuple[Float64Array, bool]:
    """The least time of each row by the bytes that it must move, NaN: not known; `has_shapes`."""
    speeds = {device: peaks.memory_gb_per_s for device, peaks in devices.items() if peaks}
    speed = pl.col("device").replace_strict(speeds, default=None, return_dtype=pl.Float64)
    known_bytes = pl.col("bytes").cast(pl.Float64)
    moved: pl.Expr = (
        pl.when(pl.col("kind") == "memset")
        .then(known_bytes)
        .when(pl.col("group") == "device_to_device")
        .then(known_bytes * _WITHIN_THE_DEVICE)
    )
    of_operators = work.select("op", "kind", "dur_ns").with_row_index("row")
    computing = of_operators.filter(pl.col("kind") == "compute", pl.col("op").is_not_null())
    calls = computing.group_by("op").agg(pl.col("dur_ns").sum().alias("call_ns")).sort("op")
    texts = operands_as_categories(trace, calls["op"]).select("dims", "types")
    calls = calls.with_columns(texts, operator=names_of_events(trace, calls["op"]))
    ways = calls.select("dims", "types", "operator")
    least = of_each_way(ways, lambda *way: (least_bytes(*way),), {"least": pl.Float64})
    if least["least"].null_count() < len(least):
        calls = calls.hstack(least)
        by_row = of_operators.join(calls, on="op", how="left", maintain_order="left").select(
            least=pl.when(pl.col("kind") == "compute").then(
                pl.col("least") * pl.col("dur_ns") / pl.col("call_ns")
            )
        )
        moved = pl.coalesce(moved, by_row.to_series())
    # GB/s are bytes per nanosecond.
    floor = work.select((moved / speed).fill_null(np.nan))
    return floor.to_series().to_numpy(), bool(texts["dims"].is_not_null().any())


def _of_collectives(
    trace: Trace, work: pl.DataFrame, scope: Scope
) -> tuple[Float64Array, tuple[float, ...]]:
    """The least time of each row, NaN for others than collectives of known size; the bandwidths."""
    if not (work["kind"] == "communication").any():
        return np.full(len(work), np.nan), ()
    found = analyse_communication(trace, scope).collectives
    group = ["group", "group_size", "is_of_two"]
    best = pl.col("bus_bandwidth_gb_per_s").max().over(group)
    known = (
        found.filter(pl.col("bus_bandwidth_gb_per_s") > 0)
        .with_columns(is_of_two=pl.col("kind") == POINT_TO_POINT)
        .with_columns(best=best)
        .select(
            *("event", "best"),
            least=pl.col("dur_ns") * pl.col("bus_bandwidth_gb_per_s") / pl.col("best"),
        )
    )
    least = work.select("event").join(known, on="event", how="left", maintain_order="left")
    speeds = tuple(sorted(known["best"].unique().to_list(), reverse=True))
    return least["least"].fill_null(np.nan).to_numpy(), speeds


def _kinds(work: pl.DataFrame, known: BoolArray, floor_ns: Int64Array) -> tuple[KindOfWork, ...]:
    kind = (
        pl.when(pl.col("kind") == "communication")
        .then(pl.lit(_COLLECTIVES))
        .when(pl.col("kind") != "compute")
        .then(pl.lit(_COPIES))
        .when(pl.col("group").is_in(MATRIX_GROUPS))
        .then(pl.lit(_PRODUCTS))
        .otherwise(pl.lit(_OTHERS))
    )
    table = (
        work.select("dur_ns", name=kind)
        .with_columns(known=pl.Series(known), floor=pl.Series(floor_ns))
        .group_by("name")
        .agg(
            pl.col("dur_ns").sum(),
            known_ns=pl.col("dur_ns").filter("known").sum(),
            floor_ns=pl.col("floor").filter("known").sum(),
        )
    )
    by_name = {row[0]: KindOfWork(*row) for row in table.iter_rows()}
    return tuple(by_name[name] for name in KINDS if name in by_name)
