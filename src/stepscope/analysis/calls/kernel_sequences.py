"""Sequences of kernels that the same operator runs again and again.

Definition
    Kernels belong to the outermost operator around their launch (annotations, Python frames and
    the autograd engine's own evaluation apart). The kernels of one call of an operator, in the
    order in which they began, are its sequence. Sequences of two kernels and more that occur at
    least twice are listed, by the time that the launching of all but one of their kernels takes on
    the host: they are candidates for a fused operator, for torch.compile, or for a CUDA graph.
"""

from __future__ import annotations

import polars as pl

from stepscope.analysis.calls.places import outermost_operators
from stepscope.trace.model import Trace
from stepscope.trace.schema import Category

SHORTEST = 2
FEWEST = 2
MOST = 50
MOST_NAMES = 24

SEQUENCES: dict[str, pl.DataType | type[pl.DataType]] = {
    "operator": pl.String,
    "length": pl.Int64,
    "count": pl.Int64,
    "total_ns": pl.Int64,  # of the kernels
    "mean_kernel_ns": pl.Int64,
    "calls_ns": pl.Int64,  # of the launching calls beyond one per sequence
    "kernels": pl.List(pl.String),  # the first 24
    "event": pl.Int64,  # the operator of the first occurrence
}


def kernel_sequences(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Find them.

    Args:
        rows: GPU work with category, name_id, dur_ns, op, call_ns, in order of start.

    Returns:
        A table with the columns of `SEQUENCES`, the most promising first.
    """
    mine = rows.filter(
        pl.col("category") == Category.KERNEL.value, pl.col("op").is_not_null()
    ).select("name_id", "dur_ns", "op", "call_ns", "start_ns")
    if mine.is_empty():
        return pl.DataFrame(schema=SEQUENCES)
    event_names = trace.columns("name_id")["name_id"]
    sequences = (
        mine.with_columns(outer=outermost_operators(trace, mine["op"]))
        .sort("start_ns", maintain_order=True)
        .group_by("outer", maintain_order=True)
        .agg(
            pl.col("name_id").alias("sequence"),
            pl.len().cast(pl.Int64).alias("length"),
            pl.col("dur_ns").sum(),
            (pl.col("call_ns").sum() - pl.col("call_ns").max()).alias("calls_ns"),
        )
        .filter(pl.col("length") >= SHORTEST)
    )
    if sequences.is_empty():
        return pl.DataFrame(schema=SEQUENCES)
    operator_id = event_names.gather(sequences["outer"])
    names = trace.name_rows["name"]
    found = (
        sequences.with_columns(
            operator_id=operator_id,
            key=pl.col("sequence").cast(pl.List(pl.String)).list.join(","),
        )
        .group_by("operator_id", "key", maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("length").first(),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("calls_ns").sum(),
            pl.col("sequence").first(),
            pl.col("outer").first().alias("event"),
        )
        .filter(pl.col("count") >= FEWEST)
        .sort("calls_ns", "total_ns", descending=True, maintain_order=True)
        .head(MOST)
    )
    return found.select(
        names.gather(found["operator_id"]).alias("operator"),
        "length",
        "count",
        "total_ns",
        (pl.col("total_ns") // (pl.col("count") * pl.col("length"))).alias("mean_kernel_ns"),
        "calls_ns",
        pl.Series(
            "kernels",
            [names.gather(ids[:MOST_NAMES]).to_list() for ids in found["sequence"]],
            dtype=pl.List(pl.String),
        ),
        "event",
    )
