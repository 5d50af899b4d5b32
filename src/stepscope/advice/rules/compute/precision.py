"""Rules about the precision of matrix products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.advice.evidence.replayed import replayed_finding
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.evidence.window_view import WindowView, once
from stepscope.advice.finding import Evidence, Finding, short
from stepscope.analysis.graph.replay import unchanged
from stepscope.analysis.hardware.devices import peaks_of
from stepscope.analysis.hardware.tensor_cores import MatrixUnits, matrix_products, matrix_units
from stepscope.run.figures import percent
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.model import Trace


@dataclass(frozen=True)
class Products:
    """The matrix products of a window, on devices with units made for them.

    Attributes:
        table: Rows of `window.work`, as `matrix_products` gives them.
    """

    window: WindowView
    units: MatrixUnits
    table: pl.DataFrame


def products_of(subject: Subject) -> Products | None:
    """The matrix products of a subject; None where no such units are known to be there."""
    window = subject.window
    if window is None or not window.has_gpu:
        return None
    table = _products(window)
    units = matrix_units(window.trace, table)
    return None if units is None else Products(window, units, table)


@once
def _products(window: WindowView) -> pl.DataFrame:
    return matrix_products(window.trace, window.work)


def evidence_of_time(products: Products, some: pl.DataFrame) -> tuple[Evidence, ...]:
    """How long some of the products take, of the step and of all of them."""
    window = products.window
    total_ns, all_ns = (int(table["dur_ns"].sum()) for table in (some, products.table))
    return (
        Evidence("time in them per step", window.per_device_step(total_ns), "ns"),
        Evidence("share of the step", window.device_share(total_ns), "share"),
        Evidence("of all matrix products", total_ns / max(1, all_ns), "share"),
    )


FACTOR_OF_TENSOR_CORES = 0.5
_NVIDIA = (
    "Make the sizes of matrix products multiples of 8 (pad vocabulary, heads and hidden "
    "size), keep tensors contiguous, and use channels_last for convolutions."
)
_AMD = (
    "Let MIOpen look for its fast kernels (torch.backends.cudnn.benchmark = True, and a warm "
    "find database), use channels_last for convolutions, and sizes that are multiples of 8."
)


def find_tensor_cores_unused(subject: Subject) -> list[Finding]:
    """Tensor cores unused: matrix products in half precision run on the ordinary cores.

    Measured as the time of matrix products and convolutions whose operands are half precision,
    while the kernel's name tells that it does without the tensor cores (AMD: the matrix cores), on
    a GPU that has them: NVIDIA from Volta on, AMD from Instinct MI100 on. The saving assumes that
    such a kernel takes half as long on them, which is cautious.
    """
    products = products_of(subject)
    if products is None:
        return []
    window, units = products.window, products.units
    idle = products.table.filter(pl.col("type") == "half", pl.col("uses") == "no")
    total_ns = int(idle["dur_ns"].sum())
    if window.device_share(total_ns) < subject.thresholds.matmul_share:
        return []
    cores = "matrix cores" if units.is_amd else "tensor cores"
    top = (
        idle.group_by("name")
        .agg(pl.col("dur_ns").sum())
        .sort("dur_ns", "name", descending=[True, False])
    )
    return replayed_finding(
        subject,
        unchanged(window.graph).scale_work(window.nodes(idle), FACTOR_OF_TENSOR_CORES),
        rule="tensor-cores-unused",
        title=f"half-precision matrix products do not use the {cores}",
        assumption=f"on the {cores} these kernels take half the time",
        evidence=(
            *evidence_of_time(products, idle),
            Evidence("most of it in", short(top["name"][0]), "text"),
        ),
        advice=_AMD if units.is_amd else _NVIDIA,
    )


FACTOR = 0.5
_REACHED = 0.6
"""Share of the peak that products in the faster type reach."""
WORTH_IT = 1.5
_MARGIN = 1.25


@dataclass(frozen=True)
class _Gains:
    """How many times as fast as FP32 the devices' peaks are in TF32 and in half precision."""

    of_tf32: float
    of_half: float


_UNKNOWN_NVIDIA = _Gains(of_tf32=1.0, of_half=2.0)
"""What the least of the known devices with tensor cores gain: GeForce cards."""
_UNKNOWN_AMD = _Gains(of_tf32=0.0, of_half=4.0)
"""The same with matrix cores."""


def find_full_precision_matmuls(subject: Subject) -> list[Finding]:
    """Full-precision matrix products: FP32 without TF32 or mixed precision.

    Measured as the time of matrix products and convolutions on FP32 operands whose kernels run in
    full FP32, on a GPU that could do better. On NVIDIA, those are kernels whose name does not show
    tensor cores, which would compute FP32 as TF32. On AMD, all FP32 counts: the matrix cores take
    it, at an eighth of the speed of half precision.

    The saving assumes that such a kernel reaches 60% of what the device allows in TF32 or in half
    precision, by its arithmetic and by the bytes that it moves; large products reach more. Where
    shapes or the device are not known, or tell nothing better, it takes half as long, which is
    cautious: on most devices the peak is several times as high. Where it is not, it takes what the
    peaks leave, and a quarter more.
    """
    products = products_of(subject)
    if products is None:
        return []
    window, units, rows = products.window, products.units, products.table
    is_float, unknown = pl.col("type") == "float", pl.col("type").is_null()
    if units.is_amd:
        full = rows.filter(is_float)
    else:
        full = rows.filter(
            (is_float & (pl.col("uses") != "yes")) | (unknown & (pl.col("uses") == "no"))
        )
    total_ns = int(full["dur_ns"].sum())
    if window.device_share(total_ns) < subject.thresholds.matmul_share:
        return []
    gains = _gains(window.trace) or (_UNKNOWN_AMD if units.is_amd else _UNKNOWN_NVIDIA)
    has_tf32 = _takes_tf32(units, gains)
    factor = max(FACTOR, _MARGIN / (gains.of_tf32 if has_tf32 else gains.of_half))
    better = "TF32" if has_tf32 else "half precision"
    allow = (
        "Allow TF32 (torch.set_float32_matmul_precision('high'), "
        "torch.backends.cudnn.allow_tf32 = True), or train in BF16 (torch.autocast)."
    )
    mixed = "Train in mixed precision: torch.autocast('cuda', torch.float16) with a GradScaler."
    if units.is_amd or units.has_tf32:
        mixed = "Train in mixed precision: torch.autocast('cuda', torch.bfloat16)."
    then, is_known = _durations(window, full, _type_of(units, gains), factor)
    return replayed_finding(
        subject,
        unchanged(window.graph).shorten_work(then),
        rule="full-precision-matmuls",
        title="matrix products run in full FP32" + (", with TF32 off" if has_tf32 else ""),
        assumption=f"in {better} these kernels reach {percent(_REACHED)} of the device's peak"
        if is_known
        else f"in {better} these kernels take {_factor_text(factor)} the time",
        evidence=evidence_of_time(products, full),
        advice=allow if has_tf32 else mixed,
    )


def better_type(subject: Subject) -> str | None:
    """The type in which the advice lets products of 32-bit floats run, as peaks know it."""
    products = products_of(subject)
    if products is None:
        return None
    units = products.units
    gains = _gains(products.window.trace) or (_UNKNOWN_AMD if units.is_amd else _UNKNOWN_NVIDIA)
    return _type_of(units, gains)


def _type_of(units: MatrixUnits, gains: _Gains) -> str:
    if _takes_tf32(units, gains):
        return "tf32"
    return "bfloat16" if units.is_amd or units.has_tf32 else "float16"


def _durations(
    window: WindowView, full: pl.DataFrame, better: str, factor: float
) -> tuple[Int64Array, bool]:
    """Duration of each node once the products run in a faster type; whether most is by shapes.

    Args:
        full: The products in full precision, rows of `window.work`.
        factor: What those take whose shapes are not known.
    """
    dur = window.graph.dur_ns.copy()
    nodes = window.work["node"].to_numpy()
    is_full = window.nodes(full)[nodes]
    measured = dur[nodes]
    floors = window.floors(better)
    by_shape = floors.better_ns / _REACHED
    cautious = measured * factor
    is_known = is_full & (floors.better_ns < floors.floor_ns) & (by_shape < cautious)
    then = np.where(is_known, by_shape, cautious)
    dur[nodes] = np.where(is_full, np.minimum(np.ceil(then).astype(np.int64), measured), measured)
    return dur, bool(2 * measured[is_known].sum() > measured[is_full].sum())


def _takes_tf32(units: MatrixUnits, gains: _Gains) -> bool:
    return units.has_tf32 and gains.of_tf32 >= WORTH_IT


def _gains(trace: Trace) -> _Gains | None:
    """What the known devices of a trace gain, the least of them; None: none is known."""
    found = []
    for peaks in peaks_of(trace).values():
        if peaks is None or not peaks.peak("float32"):
            return None
        plain = peaks.teraflops["float32"]
        half = max(peaks.teraflops.get("bfloat16", 0.0), peaks.teraflops.get("float16", 0.0))
        found.append((peaks.teraflops.get("tf32", 0.0) / plain, half / plain))
    if not found:
        return None
    return _Gains(min(tf32 for tf32, _ in found), min(half for _, half in found))


def _factor_text(factor: float) -> str:
    return "half" if factor == FACTOR else f"{percent(factor)} of"
