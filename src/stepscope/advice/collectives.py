"""Collectives of a window with their peers: the same operation, group and size."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.window_view import WindowView
from stepscope.trace.intervals import Int64Array


def collectives(window: WindowView) -> pl.DataFrame:
    """Collective kernels, rows of `window.work` with what they are compared with.

    Further columns: `peers` (how many are of the same kind and size, itself included), `median_ns`
    and `least_ns` of these. Where the recorder wrote no size, peers are those at the same place
    among a step's collectives, as far as all steps have the same number.
    """
    rows = window.work.filter(pl.col("kind") == "communication").join(
        window.trace.args.filter(
            pl.col("event").is_in(
                window.work.filter(pl.col("kind") == "communication")["event"].implode()
            )
        ).collect(),
        on="event",
        how="left",
        maintain_order="left",
    )

    def text(key: str) -> pl.Expr:
        return pl.col("args").str.extract(rf'"{key}"\s*:\s*"?([^",}}]*)')

    size = pl.concat_str(
        text("In msg nelems"),
        text("Out msg nelems"),
        text("dtype"),
        text("Process Group Name"),
        text("Group size"),
        separator="/",
        ignore_nulls=True,
    )
    rows = rows.with_columns(
        size=pl.when(text("In msg nelems").is_not_null()).then(size),
        place=pl.int_range(pl.len()).over("step", "lane_id", "group"),
    )
    counts = rows.group_by("step", "group").len()["len"]
    same_count = counts.n_unique() <= rows["group"].n_unique()
    place = pl.col("place").cast(pl.String) if same_count else pl.lit(None, pl.String)
    key = pl.coalesce("size", pl.concat_str(pl.lit("place "), place, "name", separator=" "))
    keyed = rows.with_columns(key=key)
    peers = ("group", "key")
    return (
        keyed.filter(pl.col("key").is_not_null())
        .with_columns(
            peers=pl.len().over(peers),
            median_ns=pl.col("dur_ns").median().over(peers),
            least_ns=pl.col("dur_ns").min().over(peers),
        )
        .drop("args")
    )


def shortened(window: WindowView, rows: pl.DataFrame, dur_ns: pl.Series) -> Int64Array:
    """Durations of all nodes, those of some rows of `window.work` replaced."""
    dur = window.graph.dur_ns.copy()
    dur[rows["node"].to_numpy()] = dur_ns.to_numpy().astype(np.int64)
    return dur
