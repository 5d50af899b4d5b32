"""FLOPs: the arithmetic that operators had to do, how fast it went, and what bounds it.

Definitions
    FLOPs and bytes of an operator come from the shapes it was called with: `calls.flop_formulas`.
    Of operators in each other for which a formula fits (linear, addmm), the innermost whose shapes
    suffice counts, so nothing counts twice.
    Time is the union of the GPU work launched inside the operator; in a trace without GPU work, the
    operator's time on the host. Achieved FLOP/s is FLOPs / time.
    Arithmetic intensity is FLOPs / bytes, each operand and result moved once.
    Roofline: no operator can be faster than max(FLOPs / peak, bytes / memory bandwidth); the larger
    of the two bounds it (compute, memory). Attainment is this bound / time. `hardware.devices` has
    the peaks; an unknown device has none. The peak is that of the first operand's type; of 32-bit
    floats that of TF32 if a kernel's name says that it used it.
    MFU, model FLOPs utilisation: FLOPs that the model needs for a step / (step time · peak of all
    devices). Recomputation is not needed, so it does not count; HFU, hardware FLOPs utilisation,
    counts it. Both are given per step, with the steps of the device where there is one. The peak
    is that of the type that most of the FLOPs have. Where more than a tenth of the GPU time of
    matrix kernels in the steps belongs to no counted operator, too much is missing: neither is
    given.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from stepscope.analysis.calls.operands_of_work import NO_SHAPES_OF, counted_calls
from stepscope.analysis.calls.operator_forest import (
    OperatorForest,
    busy_by_row,
    operator_forest,
)
from stepscope.analysis.calls.recomputation import find_recomputed
from stepscope.analysis.hardware.devices import DevicePeaks, peaks_of
from stepscope.analysis.selection.gpu_work import GpuWork, gpu_work, in_steps
from stepscope.analysis.selection.names import names_that
from stepscope.analysis.selection.scope import AnsweredScope, Scope, memoized
from stepscope.run.figures import duration
from stepscope.trace.arrays.intervals import BoolArray, Int64Array
from stepscope.trace.classify import MATRIX_GROUPS
from stepscope.trace.model import Trace

_COUNTED = "counted from the operators' shapes, without recomputation"
FLOPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "name": pl.String,
    "dims": pl.String,  # shapes of the operands, as JSON
    "type": pl.String,  # float64, float32, tf32, float16, bfloat16, float8, int8
    "device": pl.Int32,  # null: no GPU work
    "count": pl.Int64,
    "flops": pl.Int64,  # of all calls together
    "moved_bytes": pl.Int64,  # of all calls together; null: not known
    "busy_ns": pl.Int64,  # union of its GPU work per call; without GPU work, time on the host
    "teraflops_per_s": pl.Float64,  # 10^12 FLOPs per second
    "flops_per_byte": pl.Float64,  # arithmetic intensity
    "bound": pl.String,  # compute or memory; null: the device is not known
    "bound_ns": pl.Int64,  # the least time that the device would need
    "attained_share": pl.Float64,  # bound_ns / busy_ns
    "recomputed_flops": pl.Int64,  # of these FLOPs, those under activation checkpointing
}
"""One row per operator, shapes and type, the longest time first."""

STEPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "step": pl.Int32,
    "step_ns": pl.Int64,
    "flops": pl.Int64,
    "recomputed_flops": pl.Int64,
    "mfu_share": pl.Float64,  # null: device or its peak for the type not known
    "hfu_share": pl.Float64,
}

_LOOKED_INTO = ("event", "name_id", "device", "start_ns", "dur_ns", "group", "op", "step")
"""Columns of GPU work that are needed here."""

_TYPES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "char": "int8",
    "signed char": "int8",
    "unsigned char": "int8",
}
_TF32 = r"(?i)tf32|tensorop_s1688gemm"

MOST_UNCOUNTED = 0.1
"""Share of the matrix kernels' time that may be uncounted for MFU to be given."""

NO_SHAPES = "no operator's shapes were recorded (record_shapes=True), so no FLOPs can be counted"


@dataclass(frozen=True)
class FlopsReport:
    """The arithmetic of a scope.

    Attributes:
        operators: Columns `FLOPS`.
        ceilings: What each known device can do at most: device, type, peak (FLOPs per second, null:
            it has no unit for the type), bandwidth (bytes per second).
        steps: Columns `STEPS`; empty where the trace has no steps.
        busy_ns: Time of the operators that were counted.
        matrix_ns: GPU work of matrix products, convolutions and attention, by name.
        uncounted_matrix_ns: Of this, what no counted operator launched: its FLOPs are missing.
        mfu_share: MFU over all steps of the scope together; None where a peak or the steps are
            missing, or too much is not counted.
        hfu_share: The same with recomputation.
        type: The type that most of the FLOPs have; its peak is the one that counts for MFU.
        device_names: What the peaks are of, or that the device is unknown.
        work: The GPU work of counted operators: event, call (a number, the same for all work of one
            call), and name, dims and type, by which `operators` has the call.
    """

    operators: pl.DataFrame
    ceilings: pl.DataFrame = field(metadata={"show": False})
    steps: pl.DataFrame
    scope: AnsweredScope
    flops: int = field(metadata={"label": "FLOPs"})
    recomputed_flops: int = field(metadata={"label": "FLOPs of recomputation"})
    busy_ns: int = field(metadata={"label": "time of counted operators"})
    matrix_ns: int = field(metadata={"label": "matrix kernels"})
    uncounted_matrix_ns: int = field(metadata={"label": "matrix kernels not counted"})
    mfu_share: float | None = field(metadata={"label": "MFU"})
    hfu_share: float | None = field(metadata={"label": "HFU"})
    mfu_formula: str = field(metadata={"label": "FLOPs are"})
    type: str | None
    peak_flops_per_s: float | None = field(metadata={"label": "peak"})
    device_names: tuple[str, ...] = field(metadata={"label": "devices"})
    work: pl.DataFrame = field(metadata={"show": False})
    notes: tuple[str, ...]


@memoized
def analyse_flops(trace: Trace, scope: Scope | None = None) -> FlopsReport:
    """The arithmetic of the operators of a scope, its speed, and what bounds it."""
    work = gpu_work(trace, scope)
    members, asked = work.members_with(*_LOOKED_INTO), work.answered.asked
    forest = operator_forest(trace)
    calls, without_shapes = counted_calls(trace)
    counted = np.zeros(len(forest), np.bool_)
    counted[calls["row"].to_numpy()] = True
    rows = forest.rows_of(members["op"])
    owner = np.where(rows >= 0, forest.nearest(counted)[rows], -1) if len(forest) else rows
    busy = busy_by_row(len(forest), owner, members)
    again = find_recomputed(trace).rows
    mine = in_steps(forest.rows["step"], asked)
    calls = _with_measures(trace, calls, forest, members, owner, busy, again)
    calls = calls.filter(pl.Series(mine[calls["row"].to_numpy()]))
    peaks = peaks_of(trace)
    has_gpu = not work.table.is_empty()
    table = _table(calls, peaks)

    is_matrix = members["group"].is_in(MATRIX_GROUPS).to_numpy()
    durations = members["dur_ns"].to_numpy()
    uncounted_ns = int(durations[is_matrix & (owner < 0)].sum())
    matrix_ns = int(durations[is_matrix].sum())
    type_name = _main_type(table)
    peak = _main_peak(type_name, work, peaks)
    of_steps = is_matrix
    if not work.device_steps.is_empty():
        of_steps = is_matrix & members["step"].is_not_null().to_numpy()
    missing_ns = int(durations[of_steps & (owner < 0)].sum())
    is_whole = missing_ns <= MOST_UNCOUNTED * int(durations[of_steps].sum())
    possible_peak = peak if is_whole else None
    steps = _steps(trace, work, calls, possible_peak, has_gpu=has_gpu)
    mfu, hfu = _whole(steps, possible_peak, len(work.answered.devices))
    effect = "MFU is a lower bound" if is_whole else "too much is missing for MFU"
    if not missing_ns:
        effect = "none of them is in a step, so MFU lacks nothing"
    names, notes = _remarks(trace, work, peaks, table, without_shapes, uncounted_ns, effect)
    return FlopsReport(
        operators=table,
        ceilings=_ceilings(table, peaks),
        steps=steps,
        scope=work.answered.leaving_out(
            {"matrix operators whose shapes do not suffice": without_shapes}
        ),
        flops=int(table["flops"].sum()),
        recomputed_flops=int(table["recomputed_flops"].sum()),
        busy_ns=int(table["busy_ns"].sum()),
        matrix_ns=matrix_ns,
        uncounted_matrix_ns=uncounted_ns,
        mfu_share=mfu,
        hfu_share=hfu,
        mfu_formula=_COUNTED,
        type=type_name,
        peak_flops_per_s=peak,
        device_names=names,
        work=pl.DataFrame({"event": members["event"], "row": owner})
        .filter(pl.Series(owner >= 0))
        .join(calls["row", "name", "dims", "type"], on="row", maintain_order="left")
        .rename({"row": "call"}),
        notes=(*work.notes, *notes),
    )


def _with_measures(
    trace: Trace,
    calls: pl.DataFrame,
    forest: OperatorForest,
    members: pl.DataFrame,
    owner: Int64Array,
    busy: Int64Array,
    again: BoolArray,
) -> pl.DataFrame:
    row = calls["row"].to_numpy()
    device = np.full(len(forest), -1, np.int64)
    known = owner >= 0
    device[owner[known]] = members["device"].to_numpy()[known]
    uses_tf32 = np.zeros(len(forest), np.bool_)
    is_tf32 = names_that(trace, pl.col("name").str.contains(_TF32))[members["name_id"].to_numpy()]
    uses_tf32[owner[known & is_tf32]] = True
    plain = pl.col("type").replace_strict(_TYPES, default=None, return_dtype=pl.String)
    float8 = pl.col("type").str.starts_with("float8")
    return calls.with_columns(
        device=pl.Series(device[row]),
        busy_ns=pl.Series(np.where(device[row] >= 0, busy[row], 0)),
        host_ns=pl.Series(forest.dur_ns[row]),
        step=forest.rows["step"][row],
        again=pl.Series(again[row]),
        tf32=pl.Series(uses_tf32[row]),
        type=pl.when(float8).then(pl.lit("float8")).otherwise(plain),
    ).with_columns(
        device=pl.when(pl.col("device") >= 0).then("device").cast(pl.Int32),
        busy_ns=pl.col("busy_ns") if len(members) else pl.col("host_ns"),
        type=pl.when((pl.col("type") == "float32") & pl.col("tf32"))
        .then(pl.lit("tf32"))
        .otherwise("type"),
    )


def _table(calls: pl.DataFrame, peaks: dict[int, DevicePeaks | None]) -> pl.DataFrame:
    grouped = calls.group_by("name", "dims", "type", "device").agg(
        count=pl.len(),
        flops=pl.col("flops").sum(),
        moved_bytes=pl.when(pl.col("moved_bytes").null_count() == 0).then(
            pl.col("moved_bytes").sum()
        ),
        busy_ns=pl.col("busy_ns").sum(),
        recomputed_flops=pl.col("flops").filter("again").sum(),
    )
    limit = _ceilings(grouped, peaks)
    compute_ns = pl.col("flops") / pl.col("peak") * 1e9
    memory_ns = pl.col("moved_bytes") / pl.col("bandwidth") * 1e9
    is_whole = pl.col("peak").is_not_null() & pl.col("moved_bytes").is_not_null()
    time = pl.when(pl.col("busy_ns") > 0).then("busy_ns")
    return (
        grouped.join(limit, on=["device", "type"], how="left", nulls_equal=True)
        .with_columns(
            teraflops_per_s=pl.col("flops") / time / 1e3,
            flops_per_byte=pl.when(pl.col("moved_bytes") > 0).then(
                pl.col("flops") / pl.col("moved_bytes")
            ),
            bound=pl.when(is_whole & (compute_ns >= memory_ns))
            .then(pl.lit("compute"))
            .when(is_whole)
            .then(pl.lit("memory")),
            bound_ns=pl.when(is_whole).then(
                pl.max_horizontal(compute_ns, memory_ns).round().cast(pl.Int64)
            ),
        )
        .with_columns(attained_share=pl.col("bound_ns") / time)
        .sort(
            ["busy_ns", "flops", "name", "dims", "type", "device"],
            descending=[True, True, False, False, False, False],
        )
        .select(pl.col(column).cast(dtype) for column, dtype in FLOPS.items())
    )


def _ceilings(operators: pl.DataFrame, peaks: dict[int, DevicePeaks | None]) -> pl.DataFrame:
    limits = [
        (device, type_name, known.peak(type_name or ""), known.memory_gb_per_s * 1e9)
        for device, type_name in operators["device", "type"].unique().iter_rows()
        if device is not None and (known := peaks.get(device)) is not None
    ]
    return pl.DataFrame(
        limits,
        schema={
            "device": pl.Int32,
            "type": pl.String,
            "peak": pl.Float64,
            "bandwidth": pl.Float64,
        },
        orient="row",
    )


def _main_type(table: pl.DataFrame) -> str | None:
    by_type = table.drop_nulls("type").group_by("type").agg(pl.col("flops").sum())
    if by_type.is_empty():
        return None
    return str(by_type.sort("flops", "type", descending=[True, False])["type"][0])


def _main_peak(
    type_name: str | None, work: GpuWork, peaks: dict[int, DevicePeaks | None]
) -> float | None:
    """The peak of one device, where all devices of the scope have the same."""
    if type_name is None or not work.answered.devices:
        return None
    found = set()
    for device in work.answered.devices:
        known = peaks.get(device)
        found.add(None if known is None else known.peak(type_name))
    return found.pop() if len(found) == 1 else None


def _steps(
    trace: Trace, work: GpuWork, calls: pl.DataFrame, peak: float | None, *, has_gpu: bool
) -> pl.DataFrame:
    if has_gpu:
        # Device steps, added up over the devices: each could have worked all the time.
        times = work.device_steps.group_by("step").agg(
            step_ns=(pl.col("end_ns") - pl.col("start_ns")).sum()
        )
    else:
        times = trace.steps.select("step", step_ns=pl.col("end_ns") - pl.col("start_ns"))
    flops = calls.group_by("step").agg(
        flops=pl.col("flops").sum(), recomputed_flops=pl.col("flops").filter("again").sum()
    )
    possible = pl.col("step_ns") / 1e9 * pl.lit(peak, pl.Float64)
    return (
        times.filter(pl.col("step").is_in(list(work.answered.steps)))
        .join(flops, on="step", how="left")
        .with_columns(pl.col("flops", "recomputed_flops").fill_null(0))
        .with_columns(
            mfu_share=pl.when(possible > 0).then(
                (pl.col("flops") - pl.col("recomputed_flops")) / possible
            ),
            hfu_share=pl.when(possible > 0).then(pl.col("flops") / possible),
        )
        .sort("step")
        .select(pl.col(column).cast(dtype) for column, dtype in STEPS.items())
    )


def _whole(
    steps: pl.DataFrame, peak: float | None, devices: int
) -> tuple[float | None, float | None]:
    # The steps' times are those of all devices, one after the other.
    spent_ns = int(steps["step_ns"].sum())
    done = int(steps["flops"].sum())
    if peak is None or spent_ns <= 0 or done == 0 or devices == 0:
        return None, None
    needed = done - int(steps["recomputed_flops"].sum())
    possible = spent_ns / 1e9 * peak
    return needed / possible, done / possible


def _remarks(
    trace: Trace,
    work: GpuWork,
    peaks: dict[int, DevicePeaks | None],
    table: pl.DataFrame,
    without_shapes: int,
    uncounted_ns: int,
    effect: str,
) -> tuple[tuple[str, ...], list[str]]:
    names: list[str] = []
    notes: list[str] = []
    recorded = dict(trace.devices["device", "name"].iter_rows())
    for device in work.answered.devices:
        known = peaks.get(device)
        if known is None:
            recorded_name = (
                f"'{recorded[device]}'" if recorded.get(device) else "without a name in the file"
            )
            names.append(f"device {device}: unknown ({recorded_name})")
            notes.append(
                f"device {device} {recorded_name} is unknown: no peak, so no roofline and no MFU"
            )
        else:
            names.append(f"device {device}: {known.name}")
    if table.is_empty():
        notes.append(NO_SHAPES)
    elif without_shapes:
        notes.append(NO_SHAPES_OF.format(without_shapes))
    if uncounted_ns and not table.is_empty():
        notes.append(
            f"{duration(uncounted_ns)} of matrix kernels belong to no counted operator"
            " (compiled graphs, custom kernels, missing shapes, or work without a launch):"
            f" {effect}"
        )
    if work.table.is_empty() and not table.is_empty():
        notes.append("times are those of the operators on the host")
    return tuple(names), notes
