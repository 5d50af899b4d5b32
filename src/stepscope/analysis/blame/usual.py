"""What is usual: how long the same piece of work takes on comparable ranks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analysis.blame.groups import TO_HIGHER, TO_LOWER
from stepscope.analysis.blame.matched import OF_THE_GPU, UNKNOWN, Matched, Numbers
from stepscope.analysis.blame.replay import Less
from stepscope.skew.rank_causes import FEWEST_RANKS

Flags = npt.NDArray[np.bool_]

_LEAST_PEERS = 3


@dataclass(frozen=True)
class Usual:
    """What each piece of work takes beyond what is usual.

    The same piece of work is the n-th in the step of ranks that meet in the same kinds of
    collectives, in the same dimensions, in the same order. Stages of a pipeline take up their
    micro-batches in different orders, and a send overlaps later work. So there it is the work
    for a send since the receive before it, all causes together, and nothing else is compared.
    Usual is the median over these ranks and all steps (the lower one of two), cause by cause. Where
    there are fewer than three, or the job has two ranks, nothing is beyond it. While a rank waits
    in a collective, its device does what that of the rank that is waited for has left to do after
    it. So where it is known how long each device worked for a collective, a rank computes and
    copies no more beyond the usual than its device worked.
    Transfers are alike that have kind, dimension, group size and message size (within
    a factor of two) in common.

    Attributes:
        excess_ns: Of each row and cause, the time beyond the usual; at least 0.
        transfer_excess_ns: Of each collective, likewise.
        transfer_spread_ns: Of each collective, the median distance of its like from their median,
            over those that take no longer: the longer ones may be what is wrong, up to half of all.
    """

    excess_ns: Numbers
    transfer_excess_ns: Numbers
    transfer_spread_ns: Numbers

    def less(self, matched: Matched, which: Flags) -> Less:
        """Without what some of the work takes beyond the usual.

        Args:
            which: Of each row and cause, or what broadcasts to it.
        """
        excess_ns = np.where(which, self.excess_ns, 0)
        of_host = [cause not in OF_THE_GPU for cause in matched.causes]
        return Less(excess_ns.sum(axis=1), host_ns=excess_ns[:, of_host].sum(axis=1))


def find_usual(matched: Matched) -> Usual:
    """Compares every piece of work with its like."""
    return Usual(_excess(matched), *_transfers(matched))


def _excess(matched: Matched) -> Numbers:
    if len(matched.ranks) < FEWEST_RANKS:
        return np.zeros_like(matched.local_ns)
    dimension = pl.Series("dimension", matched.dimension).cast(pl.Categorical).to_physical()
    alike = dimension.cast(pl.Int64).to_numpy() * 64 + matched.kind
    is_exchange, is_send = _exchanges(matched)
    kinds = alike[matched.collective] * 2 + is_send
    names = [f"c{place}" for place in range(len(matched.causes))]
    rows = pl.DataFrame(
        {
            "rank": matched.rank,
            "step": matched.step,
            "alike": kinds,
            "after": np.where(matched.previous >= 0, kinds[matched.previous], -1),
            "is_exchange": is_exchange,
            "whole": matched.local_ns.sum(axis=1),
            "has_previous": matched.previous >= 0,
            "device": _device_work(matched),
            "is_known": matched.ready_ns > UNKNOWN,
            **{name: matched.local_ns[:, place] for place, name in enumerate(names)},
        }
    ).with_columns(
        pl.when("is_known").then("device").alias("device"),
        place=pl.int_range(pl.len()).over("rank", "step"),
    )
    # Equal sequences of collectives have equal texts.
    sequences = (
        rows.group_by("rank", "step")
        .agg(pl.col("alike").cast(pl.String).str.join(" "))
        .with_columns(sequence=pl.col("alike").rank("dense"))
    )
    rows = rows.join(
        sequences.select("rank", "step", "sequence"),
        on=["rank", "step"],
        how="left",
        maintain_order="left",
    ).with_columns(
        sequence=pl.when(~pl.col("is_exchange")).then("sequence"),
        place=pl.when("is_exchange").then("after").otherwise("place"),
    )
    same = ["sequence", "place", "has_previous", "alike"]
    beyond = rows.select(
        pl.when(pl.len().over(same) >= _LEAST_PEERS)
        .then(pl.col(name) - pl.col(name).quantile(0.5, "lower").over(same))
        .otherwise(0)
        .clip(lower_bound=0)
        .cast(pl.Int64)
        .alias(name)
        for name in (*names, "device", "whole")
    )
    excess: Numbers = np.array(beyond.select(names).to_numpy(), order="C")
    after_receive = (is_exchange & ~is_send)[matched.previous] & (matched.previous >= 0)
    whole = np.where(is_send & after_receive, beyond["whole"].to_numpy(), 0)
    share = np.minimum(whole / np.maximum(excess.sum(axis=1), 1), 1.0)
    share = np.where(is_exchange, share, 1.0)
    excess = np.rint(excess * share[:, None]).astype(np.int64)
    of_gpu = [place for place, cause in enumerate(matched.causes) if cause in OF_THE_GPU]
    # Unknown of the first row of a rank, before which its device did nothing that is known.
    is_known = (matched.ready_ns > UNKNOWN) & (matched.worked_before >= 0)
    found = excess[:, of_gpu].sum(axis=1)
    most = np.where(is_known, beyond["device"].fill_null(0).to_numpy(), found)
    share = np.minimum(most / np.maximum(found, 1), 1.0)
    excess[:, of_gpu] = np.rint(excess[:, of_gpu] * share[:, None]).astype(np.int64)
    return excess


def _device_work(matched: Matched) -> Numbers:
    """Of each row, how long its rank's device worked since the collectives that needed its work.

    Of one that started before that was done, it is what the rank computes after it as well.
    """
    rows = np.arange(len(matched.rank))
    worked = np.cumsum(matched.device_work_ns)
    first = np.searchsorted(matched.rank, matched.rank, side="left")
    needed = np.maximum.accumulate(np.where(matched.ready_ns >= 0, rows, -1))
    before = np.concatenate((np.full(1, -1), needed[:-1]))
    found: Numbers = worked - worked[np.maximum(before, first)]
    return found


def _exchanges(matched: Matched) -> tuple[Flags, Flags]:
    dimension = matched.dimension
    up, down = (
        dimension.str.ends_with(end).to_numpy()[matched.collective] for end in (TO_HIGHER, TO_LOWER)
    )
    lowest = np.minimum.reduceat(matched.rank[matched.rows], matched.first_row[:-1])
    is_lower = matched.rank == lowest[matched.collective]
    return up | down, (up & is_lower) | (down & ~is_lower)


def _transfers(matched: Matched) -> tuple[Numbers, Numbers]:
    sizes = np.log2(np.maximum(matched.message_bytes, 1)).round()
    same = ["dimension", "kind", "members", "size"]
    away = pl.col("transfer") - pl.col("transfer").quantile(0.5, "lower").over(same)
    known = pl.len().over(same) >= _LEAST_PEERS
    table = pl.DataFrame(
        {
            "dimension": matched.dimension,
            "kind": matched.kind,
            "members": np.diff(matched.first_row),
            "size": sizes,
            "transfer": matched.transfer_ns,
        }
    ).with_columns(away=pl.when(known).then(away).otherwise(0).cast(pl.Int64))
    found = table.select(
        pl.col("away").clip(lower_bound=0).alias("excess"),
        pl.when(pl.col("away") <= 0)
        .then(pl.col("away").abs())
        .median()
        .over(same)
        .round()
        .cast(pl.Int64)
        .alias("spread"),
    )
    return found["excess"].to_numpy(), found["spread"].to_numpy()
