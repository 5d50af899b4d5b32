"""Whether matrix work runs on tensor cores (NVIDIA) or matrix cores (AMD).

Evidence
    The kernel's name shows it: "tensorop" (CUTLASS), "s1688gemm", "s16816", "hmma", "xmma",
    "nvjet", "wmma" and similar names on NVIDIA; "_MI16x16" (Tensile), "xdlops", "mfma", "gtcx" on
    AMD. "sgemm", "simt", "gemv", "ffma", cuDNN's "scudnn" and its engines for the ordinary cores
    ("dgrad_engine", "wgrad_alg0_engine", "winograd_nonfused…<float"), and MIOpen's naive
    convolutions and assembler kernels with "dot2" run without them. Other names show neither.

Eligibility
    By the operator's types and shapes: 16-bit types need matrix sides (or channels of a
    convolution) that are multiples of 8, 8-bit ones of 16, and 32-bit floats, which TF32 can
    take, of 4 on NVIDIA's devices of compute capability 8.0 and later. AMD's matrix cores (Instinct
    MI100 and later) take 32-bit floats directly. Newer libraries pad odd sides and use tensor cores
    anyway, which the names show. Without types and shapes (`record_shapes=True` records them)
    eligibility is unknown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import polars as pl

from stepscope.analysis.calls.call_sites import names_of_events
from stepscope.analysis.calls.operands_of_work import operands_of_work
from stepscope.analysis.hardware.devices import compute_capability, described_devices, is_amd
from stepscope.analysis.selection.names import by_distinct_name
from stepscope.trace.arrays.nullable import distinct
from stepscope.trace.classify import MATRIX_GROUPS
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

MOST = 50

_USES = (
    r"(?i)(^|[^b])tensor_?op|[sdhi](884|1688|16816|161616|16832|8816)|[hi]mma|gmma|xmma|nvjet|wmma"
    r"|_mma_|_tc_|flash|fmha|bf16gemm|tf32|utcmma|tcgen"
    r"|(^|_)MI\d+x\d+|xdl|mfma|gtcx|_(fp16|bf16)_.*tensor"
)
_SURELY_NOT = r"(?i)_ffma|f32f32_f32f32"
"""Products of the families that mostly do, in their FP32 kind."""
_USES_NOT = (
    r"(?i)(^|_)[sd]_?gemm|simt|gemv|scudnn|gemmSN|gemmk1|implicit_convolve_sgemm"
    r"|implicit_con.*float|naive_conv|_dot2_|Sp3AsmConv"
    # cuDNN's engines for the ordinary cores, and torch's own convolutions, of any type.
    r"|[dw]grad(2d)?(_alg\d+)?_(engine|\d|c1_k1)|convolve_(common_engine|sgemm)"
    r"|winograd_?nonfused\S*<float"
    r"|fft2d_[rc]2[rc]|(conv|grad)2d_grouped_direct|conv_depthwise[23]d"
)
_OF_CONVOLUTION = r"(?i:engine|sgemm|direct_kernel|conv_depthwise\w+?|winograd\w+?|grad2d_\w+?)"
_FLOAT_IN_NAME = rf"{_OF_CONVOLUTION}(<(\d+, )*float\b|_float|If)"
_HALF_IN_NAME = (
    rf"{_OF_CONVOLUTION}(<(\d+, )*(__half|c10::Half|c10::BFloat16|__nv_bfloat16)\b"
    r"|I\d+__(half|nv_b))"
)
"""The operands of the same convolutions, by their templates' first type, also mangled."""
_HELPERS = (
    r"(?i)splitK_?reduce|computeOffsets|batched_transpose|SubTensor|im2col|col2im|nchwToNhwc"
    r"|nhwcToNchw|transpose_(nchw|cnhw|nhwc)|CatArray"
)
"""Kernels that only prepare or finish the matrix work."""

_MULTIPLES = {
    "c10::Half": 8,
    "c10::BFloat16": 8,
    "half": 8,
    "float": 4,
    "signed char": 16,
    "unsigned char": 16,
    "c10::Float8_e4m3fn": 16,
    "c10::Float8_e5m2": 16,
    "c10::Float8_e4m3fnuz": 16,
    "c10::Float8_e5m2fnuz": 16,
}
_FIRST_WITH_TENSOR_CORES, _FIRST_WITH_TF32 = 7, 8
"""Major compute capabilities."""
_WITH_MATRIX_CORES = r"MI[123]\d\d"
_SHAPES = r"^(\[[\d,\[\]]*\])"


@dataclass(frozen=True)
class TensorCoreUse:
    """How the matrix work runs.

    Attributes:
        table: One row per operator, type, shapes and use: operator, type, shapes, uses ("yes",
            "no", "unknown"), eligible ("yes", "no", "unknown"), why, count, total_ns, kernel (the
            longest one's name) and an event.
    """

    table: pl.DataFrame
    matrix_ns: int
    used_ns: int
    notes: tuple[str, ...]


_TABLE: dict[str, pl.DataType | type[pl.DataType]] = {
    "operator": pl.String,
    "type": pl.String,
    "shapes": pl.String,
    "uses": pl.String,
    "eligible": pl.String,
    "why": pl.String,
    "count": pl.Int64,
    "total_ns": pl.Int64,
    "kernel": pl.String,
    "event": pl.Int64,
}


def evidence() -> pl.Expr:
    """Of rows with `name`: whether the kernel uses tensor cores: "yes", "no", "unknown"."""
    return (
        pl.when(pl.col("name").str.contains(_SURELY_NOT))
        .then(pl.lit("no"))
        .when(pl.col("name").str.contains(_USES))
        .then(pl.lit("yes"))
        .when(pl.col("name").str.contains(_USES_NOT))
        .then(pl.lit("no"))
        .otherwise(pl.lit("unknown"))
    )


def matrix_products(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """The kernels of matrix products and convolutions among some GPU work.

    Args:
        work: GPU work with kind, group, name_id, name and op.

    Returns:
        Their rows, with `type` ("half", "float", "double", "other"; null: not recorded), from the
        operands of the operator that launched each, else from the kernel's name, and `uses` as
        `evidence` gives it. Kernels that only prepare operands are left out.
    """
    rows = work.filter(pl.col("kind") == "compute", pl.col("group").is_in(MATRIX_GROUPS))
    rows = rows.filter(~by_distinct_name(rows, pl.col("name").str.contains(_HELPERS)))
    operators = pl.Series(distinct(rows["op"]))
    types = operands_of_work(trace, operators)["event", "types"].rename({"event": "op"})
    recorded = pl.col("types").str.to_lowercase()
    kind = (
        pl.when(recorded.str.contains("bfloat16|half|float8|int8|signed char"))
        .then(pl.lit("half"))
        .when(recorded.str.contains(r'"float"'))
        .then(pl.lit("float"))
        .when(recorded.str.contains(r'"double"'))
        .then(pl.lit("double"))
        .when(pl.col("types").is_not_null())
        .then(pl.lit("other"))
    )
    named = (
        pl.when(pl.col("name").str.contains(_FLOAT_IN_NAME))
        .then(pl.lit("float"))
        .when(pl.col("name").str.contains(_HALF_IN_NAME))
        .then(pl.lit("half"))
    )
    return rows.join(types, on="op", how="left", maintain_order="left").select(
        *rows.columns,
        type=pl.coalesce(kind, by_distinct_name(rows, named)),
        uses=by_distinct_name(rows, evidence()),
    )


@dataclass(frozen=True)
class MatrixUnits:
    """The units that devices have for matrix products.

    Attributes:
        is_amd: Whether they are AMD's matrix cores; else NVIDIA's tensor cores.
    """

    is_amd: bool
    has_tf32: bool


def matrix_units(trace: Trace, products: pl.DataFrame) -> MatrixUnits | None:
    """The units of the devices in use; None: they have none, or it is not known.

    NVIDIA's compute capability tells, or AMD's product name; where the file describes no device,
    a kernel that uses them.
    """
    capability = compute_capability(trace)
    if capability is not None:
        if capability < _FIRST_WITH_TENSOR_CORES:
            return None
        return MatrixUnits(is_amd=False, has_tf32=bool(_has_tf32(capability)))
    if not is_amd(trace):
        return None
    names = described_devices(trace)["name"].drop_nulls()
    if len(names):
        has_units = bool(names.str.contains(_WITH_MATRIX_CORES).any())
    else:
        has_units = bool((products["uses"] == "yes").any())
    return MatrixUnits(is_amd=True, has_tf32=False) if has_units else None


def tensor_core_use(trace: Trace, rows: pl.DataFrame) -> TensorCoreUse:
    """Find out which matrix kernels use tensor cores and which could.

    Args:
        rows: GPU work with category, name_id, group, dur_ns, op, event.
    """
    names = trace.name_rows["name_id", "name"]
    mine = (
        rows.filter(
            pl.col("group").is_in(MATRIX_GROUPS), pl.col("category") == Category.KERNEL.value
        )
        .select("event", "name_id", "dur_ns", "op", "group")
        .join(names.with_columns(uses=evidence()), on="name_id", how="left", maintain_order="left")
        .filter(~pl.col("name").str.contains(_HELPERS))
    )
    if mine.is_empty():
        return TensorCoreUse(pl.DataFrame(schema=_TABLE), 0, 0, ())
    operators = _operators(trace, mine["op"].drop_nulls().unique().sort())
    grouped = (
        mine.join(operators, on="op", how="left", maintain_order="left")
        .group_by("operator", "type", "shapes", "uses")
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("name").sort_by("dur_ns", maintain_order=True).last().alias("kernel"),
            pl.col("event").first(),
        )
        .sort(
            ["total_ns", "operator", "shapes", "type", "uses"],
            descending=[True, False, False, False, False],
        )
        .head(MOST)
    )
    amd = is_amd(trace)
    has_tf32 = None if amd else _has_tf32(compute_capability(trace))
    verdicts = [
        _eligible(operator or "", type_, shapes, has_tf32, amd=amd)
        for operator, type_, shapes in grouped.select("operator", "type", "shapes").iter_rows()
    ]
    table = grouped.with_columns(
        eligible=pl.Series([word for word, _ in verdicts], dtype=pl.String),
        why=pl.Series([why for _, why in verdicts], dtype=pl.String),
    ).select(pl.col(name).cast(dtype) for name, dtype in _TABLE.items())
    notes: tuple[str, ...] = ()
    if operators["type"].null_count() == len(operators):
        notes = ("types and shapes were not recorded, so tensor-core eligibility is not known",)
    used_ns = int(mine.filter(pl.col("uses") == "yes")["dur_ns"].sum())
    return TensorCoreUse(table, int(mine["dur_ns"].sum()), used_ns, notes)


def _operators(trace: Trace, ops: pl.Series) -> pl.DataFrame:
    """op, operator, and the type and the shapes of its inputs as JSON text."""
    called = operands_of_work(trace, ops)
    return called.select(
        op="event",
        operator=names_of_events(trace, ops),
        type=pl.col("types").str.extract(r'"((?:c10::)?[A-Za-z_][\w: ]*)"'),
        shapes=pl.col("dims").str.replace_all(r"\s+", "").str.extract(_SHAPES),
    )


def _has_tf32(capability: int | None) -> bool | None:
    return None if capability is None else capability >= _FIRST_WITH_TF32


def _eligible(
    operator: str, type_: str | None, shapes: str | None, has_tf32: bool | None, *, amd: bool
) -> tuple[str, str]:
    if type_ is None or shapes is None:
        return "unknown", "types and shapes were not recorded"
    multiple = _MULTIPLES.get(type_)
    if multiple is None:
        return "unknown", f"no rule for {type_}"
    if type_ == "float" and amd:
        return "yes", "matrix cores take 32-bit floats"
    if type_ == "float" and has_tf32 is not True:
        if has_tf32 is False:
            return "no", "32-bit floats, and the device has no TF32"
        return "unknown", "32-bit floats on an unknown device"
    sides = _sides(operator, json.loads(shapes))
    if not sides:
        return "unknown", "shapes that no rule reads"
    odd = sorted({side for side in sides if side % multiple})
    if odd:
        return "no", f"{', '.join(map(str, odd))}: no multiple of {multiple}"
    via = " as TF32" if type_ == "float" else ""
    return "yes", f"all sides are multiples of {multiple}{via}"


def _sides(operator: str, shapes: Any) -> list[int]:
    """The sides that must be multiples: of matrices, or channels of a convolution's weight."""
    tensors = [shape for shape in shapes if isinstance(shape, list) and len(shape) >= 2]
    tensors = [shape for shape in tensors if all(isinstance(side, int) for side in shape)]
    if "conv" in operator:
        place = 2 if "backward" in operator.lower() else 1
        weights = tensors[place : place + 1] or tensors[1:2]
        return [side for weight in weights for side in weight[:2]]
    if len(tensors) < 2:
        return []
    if "attention" in operator:
        return [tensors[0][-1]]
    # Of addmm's three the first is the addend; the factors are the last two.
    return [side for matrix in tensors[:3][-2:] for side in matrix[-2:]]
