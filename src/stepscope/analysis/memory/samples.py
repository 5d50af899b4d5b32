"""Samples of the memory of GPUs, from a file of metrics."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from stepscope.analysis.record.metrics import read_metrics
from stepscope.errors import UnreadableInputError
from stepscope.memory.sampled import SAMPLES, SampledMemory

_MIB = 1 << 20


def sampled_memory(path: Path) -> tuple[SampledMemory, ...]:
    """The samples of each GPU's memory.

    Args:
        path: A `metrics.csv`, or what nvidia-smi wrote.

    Raises:
        UnreadableInputError: It cannot be read, or has no samples of a GPU's memory.
    """
    frame, _ = read_metrics(path)
    frame = frame.select(
        _column(frame, "index", pl.Float64).cast(pl.Int64).alias("index"),
        _column(frame, "name", pl.String).alias("name"),
        _column(frame, "time_ns", pl.Int64).alias("time_ns"),
        _bytes(_column(frame, "memory.used", pl.Float64)).alias("used_bytes"),
        _bytes(_column(frame, "memory.total", pl.Float64)).alias("total_bytes"),
    ).drop_nulls(["time_ns", "used_bytes"])
    if frame.is_empty():
        raise UnreadableInputError(
            f"{path}: no samples of a GPU's memory: none has a timestamp and memory.used"
        )
    return tuple(
        _of_one(part, str(path)) for part in frame.partition_by("index", maintain_order=True)
    )


def _of_one(rows: pl.DataFrame, source: str) -> SampledMemory:
    index, name = rows["index"][0], rows["name"].drop_nulls()
    totals = rows["total_bytes"].drop_nulls()
    gpu = "the sampled GPU" if index is None else f"GPU {index}"
    return SampledMemory(
        source=source,
        index=index,
        gpu=f"{gpu} ({name[0]})" if len(name) else gpu,
        total_bytes=int(totals[-1]) if len(totals) else None,
        samples=rows.select(pl.col(column) for column in SAMPLES).sort("time_ns"),
    )


def _column(frame: pl.DataFrame, name: str, kind: type[pl.DataType]) -> pl.Expr:
    """A column of the file; nulls where it does not have it."""
    return pl.col(name) if name in frame.columns else pl.lit(None, kind)


def _bytes(mebibytes: pl.Expr) -> pl.Expr:
    return (mebibytes * _MIB).round().cast(pl.Int64)
