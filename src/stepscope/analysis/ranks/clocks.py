"""The clocks of several ranks, brought together by the collectives that they share.

Ranks on one machine share a clock, ranks of different machines do not quite. `rank_clocks` finds
how far clocks are apart, over all process groups at once: two ranks may meet only through others.
With `Clock.ALIGNED` that is taken off before arrivals are compared; with `Clock.RECORDED` nothing
is; `Clock.AUTO` aligns if any two ranks' offsets differ by more than is tolerated. GPUs of one
machine leave a collective within microseconds, so that a difference of `TOLERATED_NS` is one of
clocks. Processes that communicate on their CPUs leave one after another: there it may take
`TOLERATED_ON_HOSTS_NS`, as between ranks whose waits do not quite fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import polars as pl

from stepscope.analysis.ranks.matching import SYNCHRONISING
from stepscope.analysis.ranks.rank_clocks import RankClocks
from stepscope.run.figures import duration

TOLERATED_NS = 50_000
"""Offsets of clocks that need no alignment, where GPUs communicate."""
TOLERATED_ON_HOSTS_NS = 1_000_000
"""The same where CPUs do."""


class Clock(str, Enum):
    """How clocks of different ranks are brought together."""

    AUTO = "auto"
    RECORDED = "recorded"
    ALIGNED = "aligned"


def on_one_clock(matched: pl.DataFrame, offsets: pl.DataFrame, clocks: RankClocks) -> pl.DataFrame:
    """Brings matched collectives onto one clock, and says how long ranks wait in them.

    Args:
        matched: As `matching.match_collectives` returns them.
        offsets: What to take off: see `choose_offsets`.

    Returns:
        The same with `end_ns` on the common clock, `arrival_ns` (since the first arrival of any
        rank), `wait_ns` (until the last of the set has come; where ranks may leave before, no
        longer than the rank's own kernel) and `spread` (how far the end is from the set's median
        end).
    """
    until_last = pl.col("arrival_ns").max().over("key") - pl.col("arrival_ns")
    # The root of a broadcast sends and goes on: nobody waits for a rank that only receives.
    waits_in_it = pl.when(pl.col("kind").is_in(SYNCHRONISING)).then(until_last)
    return (
        matched.join(offsets, on="rank", how="left", maintain_order="left")
        .with_columns(arrival_ns=clocks.corrected("start_ns"), end_ns=clocks.corrected("end_ns"))
        .with_columns(
            arrival_ns=pl.col("arrival_ns") - pl.col("arrival_ns").min(),
            wait_ns=waits_in_it.otherwise(pl.min_horizontal(until_last, "dur_ns")),
            spread=(pl.col("end_ns") - pl.col("end_ns").median().over("key")).abs(),
        )
    )


def waits_fit(common: pl.DataFrame) -> bool:
    """Whether the waits on a common clock fit into the collectives' kernels.

    In a synchronising collective a rank waits inside its kernel, so the kernel lasts at least as
    long as the wait. If most waits are longer, the clocks do not agree.
    """
    waits = common.filter(pl.col("kind").is_in(SYNCHRONISING))
    beyond = (waits["wait_ns"] - waits["dur_ns"] - TOLERATED_ON_HOSTS_NS).clip(lower_bound=0)
    return 2 * int(beyond.sum()) <= int(waits["wait_ns"].sum())


def choose_offsets(
    clocks: RankClocks, ranks: Sequence[int], clock: Clock | str, *, on_hosts: bool
) -> tuple[pl.DataFrame, Clock, str]:
    """What is taken off each rank's clock, what was done, `RECORDED` or `ALIGNED`, and why.

    Args:
        ranks: The ranks, those without a matched collective included.
        on_hosts: Whether CPUs communicate.

    Returns:
        First rank, offset_ns and drift_ppm (0 where clocks are taken as recorded), measured.
    """
    found = clocks.ranks.select("rank", "offset_ns", "drift_ppm", "collectives")
    offsets = (
        pl.DataFrame({"rank": list(ranks)}, schema={"rank": pl.Int64})
        .join(found, on="rank", how="left", maintain_order="left")
        .select(
            "rank",
            measured=pl.col("collectives").fill_null(0) > 0,
            offset_ns=pl.col("offset_ns").fill_null(0),
            drift_ppm=pl.col("drift_ppm").fill_null(0.0),
        )
    )
    tolerated_ns = TOLERATED_ON_HOSTS_NS if on_hosts else TOLERATED_NS
    used, reason = _choose_clock(Clock(clock), offsets, tolerated_ns)
    if used is Clock.RECORDED:
        offsets = offsets.with_columns(
            offset_ns=pl.lit(0, pl.Int64), drift_ppm=pl.lit(0.0, pl.Float64)
        )
    return offsets, used, reason


def _choose_clock(clock: Clock, offsets: pl.DataFrame, tolerated_ns: int) -> tuple[Clock, str]:
    known = offsets.filter("measured")["offset_ns"]
    spread = int(np.ptp(known.to_numpy())) if len(known) > 1 else 0
    differ = f"the ranks' ends of synchronising collectives differ by {duration(spread)}"
    if clock is not Clock.AUTO:
        return clock, f"asked for; {differ}"
    if len(known) < 2:
        return Clock.RECORDED, "no synchronising collective to align clocks by"
    if spread > tolerated_ns:
        return Clock.ALIGNED, f"{differ}, which is no common clock"
    return Clock.RECORDED, f"{differ}, which is a common clock"
