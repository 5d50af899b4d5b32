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
from dataclasses import dataclass
from enum import Enum

import numpy as np
import polars as pl

from stepscope.analysis.ranks.matching import SYNCHRONISING
from stepscope.analysis.ranks.rank_clocks import RankClocks, solve_rank_clocks

TOLERATED_NS = 50_000
"""Offsets of clocks that need no alignment, where GPUs communicate."""
TOLERATED_ON_HOSTS_NS = 1_000_000
"""The same where CPUs do."""


class Clock(str, Enum):
    """How clocks of different ranks are brought together."""

    AUTO = "auto"
    RECORDED = "recorded"
    ALIGNED = "aligned"


@dataclass(frozen=True)
class Aligned:
    """Matched collectives on one clock.

    Attributes:
        table: Those of `SameCollectives.table`, with `end_ns` on the common clock, `arrival_ns`
            (since the first arrival of any rank), `wait_ns` (until the last of the set has come;
            where ranks may leave before, no longer than the rank's own kernel) and `spread` (how
            far the end is from the set's median end).
        offsets: rank, offset_ns and drift_ppm (taken off; 0 where clocks are taken as recorded),
            measured.
        clock: `RECORDED` or `ALIGNED`: what was done.
        clocks: What was found of the clocks, whether it was taken off or not.
    """

    table: pl.DataFrame
    offsets: pl.DataFrame
    clock: Clock
    reason: str
    clocks: RankClocks

    @property
    def fits(self) -> bool:
        """Whether the waits fit into the collectives' kernels.

        In a synchronising collective a rank waits inside its kernel, so the kernel lasts at least
        as long as the wait. If most waits are longer, the clocks do not agree.
        """
        waits = self.table.filter(pl.col("kind").is_in(SYNCHRONISING))
        beyond = (waits["wait_ns"] - waits["dur_ns"] - TOLERATED_ON_HOSTS_NS).clip(lower_bound=0)
        return 2 * int(beyond.sum()) <= int(waits["wait_ns"].sum())


def align(
    matched: pl.DataFrame,
    ranks: Sequence[int],
    clock: Clock | str,
    tolerated_ns: int = TOLERATED_NS,
) -> Aligned:
    """Bring matched collectives onto one clock.

    Args:
        matched: `SameCollectives.table`.
        ranks: The ranks, those without a matched collective included.
        tolerated_ns: Offsets that `Clock.AUTO` leaves as they are.
    """
    clocks = solve_rank_clocks(matched)
    offsets = _offsets(clocks, ranks)
    used, reason = _choose_clock(Clock(clock), offsets, tolerated_ns)
    if used is Clock.RECORDED:
        offsets = offsets.with_columns(
            offset_ns=pl.lit(0, pl.Int64), drift_ppm=pl.lit(0.0, pl.Float64)
        )
    aligned = matched.join(offsets, on="rank", how="left", maintain_order="left").with_columns(
        arrival_ns=clocks.corrected("start_ns"), end_ns=clocks.corrected("end_ns")
    )
    return Aligned(_with_waits(aligned), offsets, used, reason, clocks)


def _with_waits(common: pl.DataFrame) -> pl.DataFrame:
    """Adds waits and spreads to matched collectives whose times are on a common clock.

    Args:
        common: Columns of `SameCollectives.table`, `arrival_ns` and `end_ns` on the common clock.

    Returns:
        Columns of `Aligned.table`.
    """
    until_last = pl.col("arrival_ns").max().over("key") - pl.col("arrival_ns")
    # The root of a broadcast sends and goes on: nobody waits for a rank that only receives.
    waits_in_it = pl.when(pl.col("kind").is_in(SYNCHRONISING)).then(until_last)
    return common.with_columns(
        arrival_ns=pl.col("arrival_ns") - pl.col("arrival_ns").min(),
        wait_ns=waits_in_it.otherwise(pl.min_horizontal(until_last, "dur_ns")),
        spread=(pl.col("end_ns") - pl.col("end_ns").median().over("key")).abs(),
    )


def _offsets(clocks: RankClocks, ranks: Sequence[int]) -> pl.DataFrame:
    """What each rank's clock reads too much: rank, offset_ns, drift_ppm, measured."""
    found = clocks.ranks.select("rank", "offset_ns", "drift_ppm", "collectives")
    return (
        pl.DataFrame({"rank": list(ranks)}, schema={"rank": pl.Int64})
        .join(found, on="rank", how="left", maintain_order="left")
        .select(
            "rank",
            measured=pl.col("collectives").fill_null(0) > 0,
            offset_ns=pl.col("offset_ns").fill_null(0),
            drift_ppm=pl.col("drift_ppm").fill_null(0.0),
        )
    )


def _choose_clock(clock: Clock, offsets: pl.DataFrame, tolerated_ns: int) -> tuple[Clock, str]:
    """Decides whether to take offsets off, and says why.

    Args:
        offsets: rank, offset_ns, measured.
        tolerated_ns: Offsets that need no alignment.
    """
    known = offsets.filter("measured")["offset_ns"]
    spread = int(np.ptp(known.to_numpy())) if len(known) > 1 else 0
    differ = f"the ranks' ends of synchronising collectives differ by {spread / 1e6:.3f} ms"
    if clock is not Clock.AUTO:
        return clock, f"asked for; {differ}"
    if len(known) < 2:
        return Clock.RECORDED, "no synchronising collective to align clocks by"
    if spread > tolerated_ns:
        return Clock.ALIGNED, f"{differ}, which is no common clock"
    return Clock.RECORDED, f"{differ}, which is a common clock"
