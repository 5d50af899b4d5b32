"""Matrix products and convolutions of a window, with the type of their operands."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.advice.finding import Evidence
from stepscope.advice.subject import Subject
from stepscope.advice.window_view import WindowView
from stepscope.analysis.hardware.tensor_cores import evidence, is_matrix_kernel

_FIRST_WITH_TENSOR_CORES = 7
_FIRST_WITH_TF32 = 8


def matmuls(window: WindowView) -> pl.DataFrame:
    """Kernels of matrix products and convolutions, rows of `window.work`.

    Further columns: `type` ("half", "float", "double", "other"; null: not recorded), from the
    operands of the operator that launched it; `uses` ("yes", "no", "unknown"): whether it uses
    tensor cores, by its name. Kernels that only prepare operands are left out.
    """
    return window.once(_matmuls)


def _matmuls(window: WindowView) -> pl.DataFrame:
    rows = window.work.filter(pl.col("kind") == "compute", is_matrix_kernel())
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
    return rows.join(types, on="op", how="left", maintain_order="left").select(
        *rows.columns, type=kind, uses=evidence()
    )


@dataclass(frozen=True)
class MatrixUnits:
    """A window on a device with units made for matrix products.

    Attributes:
        window: The window.
        is_amd: Whether they are AMD's matrix cores; else NVIDIA's tensor cores.
        has_tf32: Whether they take 32-bit floats as TF32.
    """

    window: WindowView
    is_amd: bool
    has_tf32: bool


def matrix_units(subject: Subject) -> MatrixUnits | None:
    """The window of a subject whose device is known to have such units.

    NVIDIA's compute capability tells, or AMD's product name; where the file describes no device,
    a kernel that uses them.
    """
    window = subject.window
    if window is None or not window.has_gpu:
        return None
    major = window.compute_capability
    if major is not None:
        if major < _FIRST_WITH_TENSOR_CORES:
            return None
        return MatrixUnits(window, is_amd=False, has_tf32=major >= _FIRST_WITH_TF32)
    if not window.is_amd:
        return None
    names = window.trace.devices.filter("is_used")["name"].drop_nulls()
    if len(names):
        has_units = bool(names.str.contains(r"MI[123]\d\d").any())
    else:
        has_units = bool((matmuls(window)["uses"] == "yes").any())
    return MatrixUnits(window, is_amd=True, has_tf32=False) if has_units else None


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
