"""Matrix products and convolutions of a window, with the type of their operands."""

from __future__ import annotations

import polars as pl

from stepscope.advice.finding import Evidence
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView

_FIRST_WITH_TENSOR_CORES = 7

_GROUPS = ("gemm", "convolution", "attention")
_TENSOR_CORES = (
    r"(?i)tensor_?op|wgmma|mma|hmma|imma|884|1688|16816|h?xmma|nvjet|sm90_xmma|_tc_|wmma"
    r"|flash|fmha|bf16gemm|gmma|tf32|utcmma|tcgen"
)
_ALWAYS_FULL = r"(?i)sgemm|_ffma|simt|s_?gemm|scudnn|fp32|f32f32_f32f32|implicit_con.*float"
_AUXILIARY = r"(?i)splitK(reduce)?|nchwToNhwc|nhwcToNchw|convert|im2col|col2im|offsets|transpose"


def matmuls(window: WindowView) -> pl.DataFrame:
    """Kernels of matrix products and convolutions, rows of `window.work`.

    Further columns: `type` ("half", "float", "double", "other"; null: not recorded), from the
    operands of the operator that launched it; `uses_tensor_cores`, by the kernel's name;
    `is_full_precision`, by the kernel's name. Kernels that only prepare operands are left out.
    """
    rows = window.work.filter(
        pl.col("kind") == "compute",
        pl.col("group").is_in(_GROUPS),
        ~pl.col("name").str.contains(_AUXILIARY),
    )
    types = (
        window.trace.args.filter(pl.col("event").is_in(rows["op"].drop_nulls().unique().implode()))
        .select(
            op="event", types=pl.col("args").str.extract(r'"Input [tT]ypes?"\s*:\s*(\[[^\]]*\])')
        )
        .collect()
    )
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
    name = pl.col("name")
    return rows.join(types, on="op", how="left", maintain_order="left").select(
        *rows.columns,
        type=kind,
        uses_tensor_cores=name.str.contains(_TENSOR_CORES),
        is_full_precision=name.str.contains(_ALWAYS_FULL)
        & ~name.str.contains(r"(?i)tf32|tensorop|1688|16816"),
    )


def window_with_tensor_cores(subject: Subject) -> tuple[WindowView, int] | None:
    """The window of a subject and its GPU's major compute capability.

    None: there is no GPU work in it, or the GPU has no tensor cores, or is not known to have them.
    """
    window = subject.window
    if window is None or not window.has_gpu:
        return None
    major = window.compute_capability
    if major is None or major < _FIRST_WITH_TENSOR_CORES:
        return None
    return window, major


def evidence_of_time(
    window: WindowView, some: pl.DataFrame, products: pl.DataFrame
) -> tuple[Evidence, ...]:
    """How long some kernels take, of the step and of all matrix products."""
    total_ns = int(some["dur_ns"].sum())
    products_ns = int(products["dur_ns"].sum())
    return (
        Evidence("time in them per step", window.per_step(total_ns), "ns"),
        Evidence("share of the step", window.share(total_ns), "share"),
        Evidence("of all matrix products", total_ns / max(1, products_ns), "share"),
    )
