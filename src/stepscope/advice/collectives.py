"""Collectives of a window with their peers: the same operation, group and size."""

from __future__ import annotations

import numpy as np
import polars as pl

from stepscope.advice.thresholds import Thresholds
from stepscope.advice.window_view import WindowView
from stepscope.analysis.abnormal_collectives import find_abnormal_collectives
from stepscope.analysis.graph.replay import Changes, unchanged
from stepscope.trace.arrays.intervals import Int64Array

_OUTLIER = (
    *("node", "event", "step", "kind", "dur_ns", "expected_ns", "expected_from", "times", "cause"),
)
_SAME_PLACE = "the same place in the other steps"


def collectives(window: WindowView) -> pl.DataFrame:
    """Collective kernels, rows of `window.work` with what they are compared with.

    Further columns: `peers` (how many are of the same kind and size, itself included), `median_ns`
    and `least_ns` of these. Where the recorder wrote no size, peers are those at the same place
    among a step's collectives, as far as all steps have the same number.
    """
    return window.once(_collectives)


def _collectives(window: WindowView) -> pl.DataFrame:
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


def outliers(window: WindowView, limits: Thresholds) -> pl.DataFrame:
    """Collectives that take far longer than others of their kind and size.

    Columns: node, event, step (index), kind, dur_ns, expected_ns, expected_from, times, cause
    (null: not known).
    """
    return pl.concat([_by_size(window, limits), _by_place(window, limits)])


def undisturbed(
    window: WindowView, limits: Thresholds, waits: pl.DataFrame | None
) -> tuple[Changes, bool]:
    """The steps with each outlier as long as expected, and without known waiting for other ranks.

    Returns:
        The changed graph, and whether anything changed.
    """
    odd = outliers(window, limits)
    dur = shortened(window, odd, odd["expected_ns"])
    if waits is not None:
        rows = window.work.join(waits, on="event", maintain_order="left")
        alone = (rows["dur_ns"] - rows["wait_ns"]).clip(lower_bound=0)
        dur = np.minimum(dur, shortened(window, rows, alone))
    return unchanged(window.graph).shorten_work(dur), bool((dur < window.graph.dur_ns).any())


def _by_size(window: WindowView, limits: Thresholds) -> pl.DataFrame:
    report = find_abnormal_collectives(
        window.trace,
        window.scope,
        baseline=window.baseline,
        factor=limits.abnormal_collective_factor,
    )
    found = report.table.select("event", *_OUTLIER[3:])
    return window.work.select("event", "node", "step").join(found, on="event").select(_OUTLIER)


def _by_place(window: WindowView, limits: Thresholds) -> pl.DataFrame:
    """Outliers among the collectives of unknown size."""
    rows = collectives(window).filter(
        pl.col("size").is_null(), pl.col("peers") >= limits.abnormal_collective_peers
    )
    expected = pl.col("median_ns").round().cast(pl.Int64)
    return (
        rows.with_columns(
            kind=pl.col("group"),
            expected_ns=expected,
            expected_from=pl.lit(_SAME_PLACE),
            times=pl.col("dur_ns") / pl.max_horizontal(expected, pl.lit(1_000)),
            cause=pl.lit(None, pl.String),
        )
        .filter(pl.col("times") >= limits.abnormal_collective_factor)
        .select(_OUTLIER)
    )


def shortened(window: WindowView, rows: pl.DataFrame, dur_ns: pl.Series) -> Int64Array:
    """Durations of all nodes, those of some rows of `window.work` replaced."""
    dur = window.graph.dur_ns.copy()
    dur[rows["node"].to_numpy()] = dur_ns.to_numpy().astype(np.int64)
    return dur
