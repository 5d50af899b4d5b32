"""Which collectives of different ranks are the same one.

They are if they have the same process group (name and ranks) and the same number in it. That number
is the recorder's own (`Seq`) where every rank has it; otherwise the n-th of its group in the same
step; without steps the n-th in the trace. Sends and receives are always counted, between each pair
of ranks: every rank numbers its own. Where the kinds or sizes of such a set differ, or a rank
is missing whose trace has the group, the set is left out and counted. What no step launched is left
out where steps decide.
"""

from __future__ import annotations

import polars as pl

from stepscope.analysis.calls.collectives import POINT_TO_POINT

BY_SEQUENCE = "process group and its sequence number"
BY_STEP = "process group, step and order"
BY_ORDER = "process group and order"

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds that no rank can leave before all have come."""

_IN_ALL = pl.lit(None, pl.Int32)
_NOT_IN_ALL = "collectives without a partner on every rank"
_DIFFERENT = "collectives whose kind or size differs between the ranks"
_OUTSIDE = "collectives outside the steps"


def match_collectives(found: pl.DataFrame) -> tuple[pl.DataFrame, str, pl.DataFrame]:
    """Match the collectives of several ranks, columns `rank_arrivals.ARRIVED`.

    Returns:
        Those that every rank of their group took part in: columns `ARRIVED`, `end_ns`, `key` (the
        set, numbered by the first start on any rank's clock) and `number` (in its group, as
        matched). Then how they were matched, and how many were left out by rank and
        reason: rank, reason, len.
    """
    keyed, basis = _keyed(found.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns")))
    keys = ["group", "counted_in", "number"]
    sets = _sets(keyed, keys)
    judged = keyed.join(
        sets.select(*keys, "key", "reason"),
        on=keys,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    outside = found.join(keyed.select("rank", "event"), on=["rank", "event"], how="anti")
    left_out = pl.concat(
        [
            judged.drop_nulls("reason").group_by("rank", "reason").len(),
            outside.group_by("rank").len().select("rank", pl.lit(_OUTSIDE).alias("reason"), "len"),
        ]
    ).sort("rank", "reason")
    matched = judged.filter(pl.col("reason").is_null()).drop("reason", "counted_in")
    return matched, basis, left_out


def _keyed(found: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Number the collectives within their groups; rows that cannot be numbered go.

    The column `counted_in` is the step in which they are counted; null: in all.
    """
    is_p2p = pl.col("kind") == POINT_TO_POINT
    pairs, others = found.filter(is_p2p), found.filter(~is_p2p)
    if pairs.is_empty() or others.is_empty():
        return _numbered(found)
    keyed, basis = _numbered(others)
    return pl.concat([keyed, _numbered(pairs)[0]]), basis


def _numbered(found: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    ordered = found.sort("rank", "start_ns", "event")
    has_sequence = bool(len(found)) and not found["sequence"].has_nulls()
    unique = not ordered.select("rank", "group", "sequence").is_duplicated().any()
    if has_sequence and unique:
        return ordered.with_columns(counted_in=_IN_ALL, number="sequence"), BY_SEQUENCE
    nth = pl.int_range(pl.len(), dtype=pl.Int64)
    if found["step"].drop_nulls().len():
        in_steps = ordered.drop_nulls("step")
        numbers = nth.over("rank", "group", "step")
        return in_steps.with_columns(counted_in="step", number=numbers), BY_STEP
    return ordered.with_columns(counted_in=_IN_ALL, number=nth.over("rank", "group")), BY_ORDER


def _sets(keyed: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The sets in order of their first start, and why one is left out: keys, key, reason."""
    members = keyed.group_by("group", maintain_order=True).agg(members=pl.col("rank").n_unique())
    return (
        keyed.group_by(keys, maintain_order=True)
        .agg(
            present=pl.col("rank").n_unique(),
            kinds=pl.col("kind").n_unique(),
            sizes=pl.col("message_bytes").n_unique(),
            varies=(pl.col("kind") == "all_to_all").all(),
            begin=pl.col("start_ns").min(),
        )
        .join(members, on="group", how="left", nulls_equal=True, maintain_order="left")
        .with_columns(
            # Ranks of an all_to_all may well send different amounts.
            reason=pl.when((pl.col("present") < pl.col("members")) | (pl.col("members") < 2))
            .then(pl.lit(_NOT_IN_ALL))
            .when((pl.col("kinds") > 1) | ((pl.col("sizes") > 1) & ~pl.col("varies")))
            .then(pl.lit(_DIFFERENT))
        )
        .sort("begin", *keys)
        .with_row_index("key")
    )
