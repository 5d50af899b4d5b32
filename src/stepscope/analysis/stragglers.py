"""Stragglers: which rank the others wait for, from the traces of several ranks.

Definitions
    Collectives of different ranks are the same one if they have the same process group (name and
    ranks) and the same number in it. That number is the recorder's own (`Seq`) where every rank has
    it; otherwise the n-th of its group in the same step; without steps the n-th in the trace. Where
    the kinds or sizes of such a set differ, or a rank is missing whose trace has the group, the set
    is left out and counted. What no step launched is left out where steps decide.
    A rank arrives when its kernel starts. Its wait is the latest arrival of the set less its own.
    The straggler is the rank with the least total wait: the others wait for it. Where ranks have
    part in different numbers of sets, the mean wait per set decides instead.
    Transfer time of a set: the shortest duration of its kernels, of which only the last to arrive
    has waited for nobody.

Clocks
    Ranks on one machine share a clock, ranks of different machines do not quite. A collective that
    no rank can leave before all have come (all_reduce, all_gather, reduce_scatter, all_to_all,
    barrier) ends everywhere at nearly the same time. The offset of a rank's clock is the median,
    over these sets, of its end less the median end of the set. With `Clock.ALIGNED` offsets are
    taken off before arrivals are compared; with `Clock.RECORDED` nothing is; `Clock.AUTO` aligns if
    any two ranks' offsets differ by more than `TOLERATED_NS`. The report gives the offsets and how
    far ends still spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import polars as pl

from stepscope.analysis.calls.collectives import read_collectives, world_size
from stepscope.analysis.communication import bus_factor
from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.errors import UsageError
from stepscope.trace.model import Trace

TOLERATED_NS = 1_000_000
"""Offsets of clocks that are not worth an alignment."""

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Kinds that no rank can leave before all have come."""

SETS: dict[str, pl.DataType | type[pl.DataType]] = {
    "set": pl.Int64,  # row number, in order of the first arrival
    "group": pl.String,
    "step": pl.Int32,
    "number": pl.Int64,  # in its group, as matched
    "kind": pl.String,
    "message_bytes": pl.Int64,
    "ranks": pl.Int64,
    "first_rank": pl.Int64,
    "last_rank": pl.Int64,
    "spread_ns": pl.Int64,  # last arrival less first arrival
    "total_wait_ns": pl.Int64,  # of all ranks
    "transfer_ns": pl.Int64,  # shortest duration
    "algorithm_bandwidth_gb_per_s": pl.Float64,  # of the transfer time
    "bus_bandwidth_gb_per_s": pl.Float64,
}
"""One row per matched collective."""

ARRIVALS: dict[str, pl.DataType | type[pl.DataType]] = {
    "set": pl.Int64,
    "rank": pl.Int64,
    "event": pl.Int64,  # in the rank's trace
    "arrival_ns": pl.Int64,  # since the first arrival of any rank, on the common clock
    "dur_ns": pl.Int64,
    "wait_ns": pl.Int64,
}
"""One row per matched collective and rank."""

RANKS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "sets": pl.Int64,  # matched collectives that it has part in
    "total_wait_ns": pl.Int64,
    "mean_wait_ns": pl.Int64,
    "last": pl.Int64,  # times that it was the last to arrive
    "first": pl.Int64,
    "offset_ns": pl.Int64,  # of its clock, taken off; 0 where clocks are taken as recorded
    "end_spread_ns": pl.Int64,  # median distance of its ends from the sets' median, after alignment
}
"""One row per rank, the least total wait first."""


class Clock(str, Enum):
    """How clocks of different ranks are brought together."""

    AUTO = "auto"
    RECORDED = "recorded"
    ALIGNED = "aligned"


@dataclass(frozen=True)
class StragglerReport:
    """Who waits for whom.

    Attributes:
        straggler: The rank with the least total wait; None where nothing could be matched, or
            nothing fits.
        ranks: Columns `RANKS`.
        sets: Columns `SETS`.
        arrivals: Columns `ARRIVALS`.
        clock: `RECORDED` or `ALIGNED`: what was done.
        clock_reason: Why.
        matched_by: What told which collectives belong together.
        scopes: For each rank what its part is about and what was left out of it.
        scope: The same of all ranks together.
        notes: What a reader must know.
        fits: Whether waits can be what they seem: a rank that waits in a collective is in it.
    """

    straggler: int | None
    ranks: pl.DataFrame
    sets: pl.DataFrame
    arrivals: pl.DataFrame
    clock: Clock
    clock_reason: str
    matched_by: str
    scopes: dict[int, AnsweredScope] = field(metadata={"show": False})
    scope: AnsweredScope
    notes: tuple[str, ...]
    fits: bool = field(default=True, metadata={"show": False})


BY_SEQUENCE = "process group and its sequence number"
BY_STEP = "process group, step and order"
BY_ORDER = "process group and order"

_NOT_IN_ALL = "collectives without a partner on every rank"
_DIFFERENT = "collectives whose kind or size differs between the ranks"
_OUTSIDE = "collectives outside the steps"
_NOTHING = "no collective could be matched between the ranks, so there is nothing to compare"
_DO_NOT_FIT = (
    "waits are longer than the collectives that were waited in: these are no ranks of one run, or "
    "their clocks cannot be brought together; no straggler is named"
)


def find_stragglers(
    ranks: Sequence[tuple[int, Trace]],
    scope: Scope | None = None,
    clock: Clock | str = Clock.AUTO,
) -> StragglerReport:
    """Find the rank that the others wait for.

    Args:
        ranks: Number and trace of each rank, at least two, all of the same steps.
        scope: Steps and events that count; devices are each rank's own.
        clock: How clocks are brought together.

    Raises:
        UsageError: Fewer than two ranks, a rank twice, traces of jobs of different sizes, or a
            scope that a trace does not have.
    """
    numbers = [rank for rank, _ in ranks]
    if len(numbers) < 2:
        raise UsageError("a straggler shows between ranks: give the traces of two or more")
    if len(set(numbers)) != len(numbers):
        twice = next(rank for rank in numbers if numbers.count(rank) > 1)
        raise UsageError(f"rank {twice} is given twice: name the ranks apart")
    _check_one_job(ranks)
    asked = scope or Scope()
    parts: list[pl.DataFrame] = []
    scopes: dict[int, AnsweredScope] = {}
    for rank, trace in ranks:
        work = gpu_work(trace, asked)
        scopes[rank] = work.answered
        parts.append(
            read_collectives(trace, work.members).with_columns(
                pl.lit(rank, pl.Int64).alias("rank"),
                (pl.col("start_ns") + trace.base_time_ns).alias("start_ns"),
            )
        )
    # Groups of different ranks may go by one name: name and ranks together tell them apart.
    found = pl.concat(parts).with_columns(
        end_ns=pl.col("start_ns") + pl.col("dur_ns"),
        group=pl.concat_str("group", "group_ranks", separator=" ", ignore_nulls=True),
    )
    keyed, matched_by = _keyed(found)
    keys = ["group", "number"] if matched_by == BY_SEQUENCE else ["group", "step", "number"]
    matched, left_out = _matched(keyed, found, keys)
    scopes = {
        rank: _with_left_out(answered, left_out.filter(pl.col("rank") == rank))
        for rank, answered in scopes.items()
    }
    offsets = _offsets(matched, numbers)
    used, reason = _choose(Clock(clock), offsets)
    if used is Clock.RECORDED:
        offsets = offsets.with_columns(offset_ns=pl.lit(0, pl.Int64))
    aligned = matched.join(offsets, on="rank", how="left", maintain_order="left").with_columns(
        arrival_ns=pl.col("start_ns") - pl.col("offset_ns"),
        end_ns=pl.col("end_ns") - pl.col("offset_ns"),
    )
    aligned = aligned.with_columns(
        arrival_ns=pl.col("arrival_ns") - pl.col("arrival_ns").min(),
        wait_ns=pl.col("arrival_ns").max().over("key") - pl.col("arrival_ns"),
        spread=(pl.col("end_ns") - pl.col("end_ns").median().over("key")).abs(),
    )
    table = _ranks(aligned, offsets)
    sets, arrivals = _sets(aligned)
    fits = _fits(aligned)
    notes = [_NOTHING] if sets.is_empty() else []
    return StragglerReport(
        _straggler(table) if fits else None,
        table,
        sets,
        arrivals,
        used,
        reason,
        matched_by,
        scopes,
        _together(asked, scopes),
        tuple(notes if fits else [_DO_NOT_FIT]),
        fits,
    )


def _check_one_job(ranks: Sequence[tuple[int, Trace]]) -> None:
    """Refuse traces that say of themselves that they are of jobs of different sizes."""
    sizes: dict[int, int] = {}
    for rank, trace in ranks:
        size = world_size(trace)
        if size is not None:
            sizes.setdefault(size, rank)
    if len(sizes) > 1:
        said = ", ".join(f"rank {rank} is one of {size}" for size, rank in sorted(sizes.items()))
        raise UsageError(f"these traces are no ranks of one run: {said}")


def _fits(aligned: pl.DataFrame) -> bool:
    """Whether whoever waited was in the collective meanwhile, as far as clocks can tell.

    In a synchronising collective a rank waits inside its kernel, which therefore lasts as long.
    """
    waits = aligned.filter(pl.col("kind").is_in(SYNCHRONISING))
    beyond = (waits["wait_ns"] - waits["dur_ns"] - TOLERATED_NS).clip(lower_bound=0)
    return 2 * int(beyond.sum()) <= int(waits["wait_ns"].sum())


def _together(asked: Scope, scopes: dict[int, AnsweredScope]) -> AnsweredScope:
    excluded: dict[str, int] = {}
    for scope in scopes.values():
        for reason, count in scope.excluded.items():
            excluded[reason] = excluded.get(reason, 0) + count
    return AnsweredScope(
        asked,
        tuple(sorted({step for scope in scopes.values() for step in scope.steps})),
        tuple(sorted({device for scope in scopes.values() for device in scope.devices})),
        sum(scope.events for scope in scopes.values()),
        excluded,
    )


def _keyed(found: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Number the collectives within their groups; rows that cannot be numbered go."""
    ordered = found.sort("rank", "start_ns", "event")
    has_sequence = bool(len(found)) and not found["sequence"].has_nulls()
    unique = not ordered.select("rank", "group", "sequence").is_duplicated().any()
    if has_sequence and unique:
        return ordered.with_columns(number="sequence"), BY_SEQUENCE
    nth = pl.int_range(pl.len(), dtype=pl.Int64)
    if found["step"].drop_nulls().len():
        in_steps = ordered.drop_nulls("step")
        return in_steps.with_columns(number=nth.over("rank", "group", "step")), BY_STEP
    return ordered.with_columns(number=nth.over("rank", "group")), BY_ORDER


def _matched(
    keyed: pl.DataFrame, found: pl.DataFrame, keys: list[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Sets that every rank of the group has, alike on all; and what is left out, by rank."""
    members = keyed.group_by("group", maintain_order=True).agg(members=pl.col("rank").n_unique())
    sets = (
        keyed.group_by(keys, maintain_order=True)
        .agg(
            present=pl.col("rank").n_unique(),
            kinds=pl.col("kind").n_unique(),
            sizes=pl.col("message_bytes").n_unique(),
            varies=(pl.col("kind") == "all_to_all").all(),
            begin=pl.col("start_ns").min(),
        )
        .join(members, on="group", how="left", nulls_equal=True)
        .with_columns(
            # Ranks of an all_to_all may well send different amounts.
            reason=pl.when((pl.col("present") < pl.col("members")) | (pl.col("members") < 2))
            .then(pl.lit(_NOT_IN_ALL))
            .when((pl.col("kinds") > 1) | ((pl.col("sizes") > 1) & ~pl.col("varies")))
            .then(pl.lit(_DIFFERENT))
        )
        .sort("begin")
        .with_row_index("key")
    )
    judged = keyed.join(
        sets.select(*keys, "key", "reason"),
        on=keys,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    left_out = judged.drop_nulls("reason").group_by("rank", "reason").len()
    outside = found.join(keyed.select("rank", "event"), on=["rank", "event"], how="anti")
    left_out = pl.concat(
        [
            left_out,
            outside.group_by("rank").len().select("rank", pl.lit(_OUTSIDE).alias("reason"), "len"),
        ]
    )
    return judged.filter(pl.col("reason").is_null()).drop("reason"), left_out


def _with_left_out(answered: AnsweredScope, left_out: pl.DataFrame) -> AnsweredScope:
    more = {str(reason): int(count) for _, reason, count in left_out.sort("reason").iter_rows()}
    return answered.leaving_out(more)


def _offsets(matched: pl.DataFrame, ranks: list[int]) -> pl.DataFrame:
    """Offset of each rank's clock, from the ends of synchronising collectives."""
    ends = matched.filter(pl.col("kind").is_in(SYNCHRONISING)).with_columns(
        late=pl.col("end_ns") - pl.col("end_ns").median().over("key")
    )
    measured = ends.group_by("rank").agg(offset_ns=pl.col("late").median().round().cast(pl.Int64))
    return (
        pl.DataFrame({"rank": ranks}, schema={"rank": pl.Int64})
        .join(measured, on="rank", how="left", maintain_order="left")
        .with_columns(
            measured=pl.col("offset_ns").is_not_null(), offset_ns=pl.col("offset_ns").fill_null(0)
        )
    )


def _choose(clock: Clock, offsets: pl.DataFrame) -> tuple[Clock, str]:
    known = offsets.filter("measured")["offset_ns"]
    spread = int(np.ptp(known.to_numpy())) if len(known) > 1 else 0
    differ = f"the ranks' ends of synchronising collectives differ by {spread / 1e6:.3f} ms"
    if clock is not Clock.AUTO:
        return clock, f"asked for; {differ}"
    if len(known) < 2:
        return Clock.RECORDED, "no synchronising collective to align clocks by"
    if spread > TOLERATED_NS:
        return Clock.ALIGNED, f"{differ}, which is no common clock"
    return Clock.RECORDED, f"{differ}, which is a common clock"


def _ranks(aligned: pl.DataFrame, offsets: pl.DataFrame) -> pl.DataFrame:
    order = ["key", "arrival_ns", "rank"]
    last = aligned.sort(order).unique("key", keep="last")["rank"].value_counts(name="last")
    first = aligned.sort(order).unique("key", keep="first")["rank"].value_counts(name="first")
    waits = aligned.group_by("rank").agg(
        sets=pl.len(),
        total_wait_ns=pl.col("wait_ns").sum(),
        mean_wait_ns=pl.col("wait_ns").mean().round(),
        end_spread_ns=pl.col("spread").median().round(),
    )
    return (
        offsets.join(waits, on="rank", how="left")
        .join(last, on="rank", how="left")
        .join(first, on="rank", how="left")
        .with_columns(pl.col("sets", "total_wait_ns", "last", "first").fill_null(0))
        .sort(pl.col("total_wait_ns"), "rank")
        .select(pl.col(column).cast(dtype) for column, dtype in RANKS.items())
    )


def _straggler(ranks: pl.DataFrame) -> int | None:
    taking_part = ranks.filter(pl.col("sets") > 0)
    if taking_part.is_empty():
        return None
    by = "total_wait_ns" if taking_part["sets"].n_unique() == 1 else "mean_wait_ns"
    return int(taking_part.sort(by, "rank")["rank"][0])


def _sets(aligned: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    by_arrival = aligned.sort("key", "arrival_ns", "rank")
    sets = by_arrival.group_by("key", maintain_order=True).agg(
        pl.col("group", "step", "number", "kind", "group_size").first(),
        message_bytes=pl.col("message_bytes").max(),
        ranks=pl.len(),
        first_rank=pl.col("rank").first(),
        last_rank=pl.col("rank").last(),
        spread_ns=pl.col("wait_ns").max(),
        total_wait_ns=pl.col("wait_ns").sum(),
        transfer_ns=pl.col("dur_ns").min(),
    )
    pairs = sets.select("kind", "group_size").unique().drop_nulls().rows()
    factors = pl.DataFrame(
        [(kind, size, bus_factor(kind, size)) for kind, size in pairs],
        schema={"kind": pl.String, "group_size": pl.Int64, "factor": pl.Float64},
        orient="row",
    )
    transfer = pl.when(pl.col("transfer_ns") > 0).then("transfer_ns")
    sets = (
        sets.join(factors, on=["kind", "group_size"], how="left", maintain_order="left")
        .with_row_index("set")
        .with_columns(algorithm_bandwidth_gb_per_s=pl.col("message_bytes") / transfer)
        .with_columns(
            bus_bandwidth_gb_per_s=pl.col("algorithm_bandwidth_gb_per_s") * pl.col("factor")
        )
    )
    arrivals = aligned.join(sets.select("key", "set"), on="key").sort("set", "rank")
    return (
        sets.select(pl.col(column).cast(dtype) for column, dtype in SETS.items()),
        arrivals.select(pl.col(column).cast(dtype) for column, dtype in ARRIVALS.items()),
    )
