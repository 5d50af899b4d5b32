"""Collectives over all ranks: waiting against transfer, bandwidths, the abnormal, the uneven.

Definitions
    `analysis.blame.compared` defines matching, arrival, wait and transfer. Bandwidths are of the
    transfer, in the convention of nccl-tests, so that waiting for late ranks does not count.
    Like collectives have dimension, kind, number of ranks and message size in common.
    Best: the greatest bus bandwidth among the like; a process group is compared with the best group
    of its dimension by medians.
    Abnormal: a transfer of more than twice the median of its like, where there are three or more.
    Uneven: an all-to-all to which ranks bring different amounts, as experts with unequal loads do;
    its imbalance is the greatest amount over the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepscope.analysis.blame.groups import find_groups
from stepscope.analysis.ranks.rank_arrivals import arrivals_of
from stepscope.analysis.selection.scope import AnsweredScope
from stepscope.fleet.job import Job
from stepscope.fleet.stragglers import stragglers_of_job

LIKE: dict[str, pl.DataType | type[pl.DataType]] = {
    "dimension": pl.String,
    "kind": pl.String,
    "ranks": pl.Int64,
    "message_bytes": pl.Int64,
    "count": pl.Int64,
    "median_spread_ns": pl.Int64,  # of arrivals
    "median_transfer_ns": pl.Int64,
    "wait_share": pl.Float64,  # of all time that ranks spend in them
    "median_bus_bandwidth_gb_per_s": pl.Float64,
    "best_bus_bandwidth_gb_per_s": pl.Float64,
}
"""One row per like collectives, the most time in waits and transfers first."""

GROUPS: dict[str, pl.DataType | type[pl.DataType]] = {
    "dimension": pl.String,
    "group": pl.String,
    "ranks": pl.List(pl.Int64),
    "collectives": pl.Int64,
    "wait_share": pl.Float64,
    "bandwidth_of_best_share": pl.Float64,  # of the best group of its dimension; null: unknown
}
"""One row per process group, the slowest first."""

ABNORMAL: dict[str, pl.DataType | type[pl.DataType]] = {
    "set": pl.Int64,
    "step": pl.Int64,
    "group": pl.String,
    "kind": pl.String,
    "message_bytes": pl.Int64,
    "transfer_ns": pl.Int64,
    "median_transfer_ns": pl.Int64,  # of its like
    "times_slower": pl.Float64,
}
"""One row per abnormal collective, by the time lost."""

UNEVEN: dict[str, pl.DataType | type[pl.DataType]] = {
    "set": pl.Int64,
    "step": pl.Int64,
    "group": pl.String,
    "least_bytes": pl.Int64,
    "mean_bytes": pl.Int64,
    "most_bytes": pl.Int64,
    "most_rank": pl.Int64,
    "imbalance": pl.Float64,
}
"""One row per uneven all-to-all, the most uneven first."""

_ABNORMAL = 2
_LEAST_LIKE = 3
_LIKE = ("dimension", "kind", "ranks", "message_bytes")


@dataclass(frozen=True)
class CollectivesOverRanks:
    """The collectives of a job.

    Attributes:
        collectives: How many could be matched.
        wait_share: Part of the time in them that ranks waited for others.
        kinds: Columns `LIKE`.
    """

    collectives: int
    wait_share: float | None
    kinds: pl.DataFrame
    groups: pl.DataFrame
    abnormal: pl.DataFrame
    uneven: pl.DataFrame
    scope: AnsweredScope
    notes: tuple[str, ...]


def collectives_over_ranks(job: Job) -> CollectivesOverRanks:
    """Answers about the collectives of a job."""
    found = stragglers_of_job(job)
    tables = arrivals_of([part.arrivals for part in job.parts])
    described = {group: word for part in job.parts for group, word in part.arrivals.described}
    dimensions = find_groups(tables, described, job.world_size).select(
        pl.col("key").alias("group"), "dimension", members="ranks"
    )
    sets = found.sets.join(
        dimensions, on="group", how="left", nulls_equal=True, maintain_order="left"
    ).with_columns(
        transfers_ns=pl.col("transfer_ns") * pl.col("ranks"),
        like_ns=pl.col("transfer_ns").median().over(_LIKE),
        like=pl.len().over(_LIKE),
    )
    waits, transfers = int(sets["total_wait_ns"].sum()), int(sets["transfers_ns"].sum())
    return CollectivesOverRanks(
        collectives=len(sets),
        wait_share=waits / (waits + transfers) if waits + transfers else None,
        kinds=_kinds(sets),
        groups=_groups(sets),
        abnormal=_abnormal(sets),
        uneven=_uneven(found.sets, found.arrivals, tables),
        scope=found.scope,
        notes=found.notes,
    )


def _share() -> pl.Expr:
    waits, transfers = pl.col("total_wait_ns").sum(), pl.col("transfers_ns").sum()
    return pl.when(waits + transfers > 0).then(waits / (waits + transfers))


def _kinds(sets: pl.DataFrame) -> pl.DataFrame:
    return (
        sets.group_by(_LIKE, maintain_order=True)
        .agg(
            count=pl.len(),
            median_spread_ns=pl.col("spread_ns").median().round(),
            median_transfer_ns=pl.col("transfer_ns").median().round(),
            wait_share=_share(),
            median_bus_bandwidth_gb_per_s=pl.col("bus_bandwidth_gb_per_s").median(),
            best_bus_bandwidth_gb_per_s=pl.col("bus_bandwidth_gb_per_s").max(),
            all_ns=pl.col("total_wait_ns").sum() + pl.col("transfers_ns").sum(),
        )
        .sort("all_ns", *_LIKE, descending=[True, False, False, False, False])
        .select(pl.col(name).cast(dtype) for name, dtype in LIKE.items())
    )


def _groups(sets: pl.DataFrame) -> pl.DataFrame:
    # Of each size a group's median bandwidth, as a share of the best group's; then their median.
    of_size = (
        sets.group_by("group", *_LIKE, maintain_order=True)
        .agg(pl.col("bus_bandwidth_gb_per_s").median().alias("own"))
        .with_columns(share=pl.col("own") / pl.col("own").max().over(_LIKE))
        .group_by("group", maintain_order=True)
        .agg(pl.col("share").median().alias("bandwidth_of_best_share"))
    )
    return (
        sets.group_by("dimension", "group", maintain_order=True)
        .agg(
            pl.col("members").first(),
            collectives=pl.len(),
            wait_share=_share(),
        )
        .join(of_size, on="group", how="left", nulls_equal=True, maintain_order="left")
        .with_columns(ranks="members")
        .sort("bandwidth_of_best_share", "dimension", "group", nulls_last=True)
        .select(pl.col(name).cast(dtype) for name, dtype in GROUPS.items())
    )


def _abnormal(sets: pl.DataFrame) -> pl.DataFrame:
    return (
        sets.filter(
            pl.col("like") >= _LEAST_LIKE, pl.col("transfer_ns") > _ABNORMAL * pl.col("like_ns")
        )
        .with_columns(
            median_transfer_ns=pl.col("like_ns").round(),
            times_slower=pl.col("transfer_ns") / pl.col("like_ns"),
            lost=pl.col("transfer_ns") - pl.col("like_ns"),
        )
        .sort("lost", "set", descending=[True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in ABNORMAL.items())
    )


def _uneven(sets: pl.DataFrame, arrivals: pl.DataFrame, tables: pl.DataFrame) -> pl.DataFrame:
    exchanged = sets.filter(pl.col("kind") == "all_to_all").select("set", "step", "group")
    amounts = (
        arrivals.join(exchanged, on="set")
        .join(tables.select("rank", "event", "message_bytes"), on=["rank", "event"])
        .drop_nulls("message_bytes")
        .sort("set", "message_bytes", "rank", descending=[False, True, False])
    )
    mean = pl.col("message_bytes").mean()
    return (
        amounts.group_by("set", "step", "group", maintain_order=True)
        .agg(
            least_bytes=pl.col("message_bytes").min(),
            mean_bytes=mean.round(),
            most_bytes=pl.col("message_bytes").max(),
            most_rank=pl.col("rank").first(),
            imbalance=pl.col("message_bytes").max() / mean,
        )
        .filter(pl.col("most_bytes") > pl.col("least_bytes"))
        .sort("imbalance", "set", descending=[True, False])
        .select(pl.col(name).cast(dtype) for name, dtype in UNEVEN.items())
    )
