"""The clocks of several ranks, brought together by the collectives that they share.

Ranks on one machine share a clock, ranks of different machines do not quite. A collective that no
rank can leave before all have come (all_reduce, all_gather, reduce_scatter, all_to_all, barrier)
ends everywhere at nearly the same time. The offset of a rank's clock is the median, over these
sets, of its end less the median end of the set. With `Clock.ALIGNED` offsets are taken off before
arrivals are compared; with `Clock.RECORDED` nothing is; `Clock.AUTO` aligns if any two ranks'
offsets differ by more than `TOLERATED_NS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import polars as pl

from stepscope.analysis.ranks.matching import SYNCHRONISING

TOLERATED_NS = 1_000_000
"""Offsets of clocks that are not worth an alignment."""


class Clock(str, Enum):
    """How clocks of different ranks are brought together."""

    AUTO = "auto"
    RECORDED = "recorded"
    ALIGNED = "aligned"


@dataclass(frozen=True)
class Aligned:
    """Matched collectives on one clock.

    Attributes:
        table: Those of `Matched.table`, with `end_ns` on the common clock, `arrival_ns` (since the
            first arrival of any rank), `wait_ns` (until the last of the set has come; where ranks
            may leave before, no longer than the rank's own kernel) and `spread` (how far the end is
            from the set's median end).
        offsets: rank, offset_ns (taken off; 0 where clocks are taken as recorded), measured.
        clock: `RECORDED` or `ALIGNED`: what was done.
        reason: Why.
    """

    table: pl.DataFrame
    offsets: pl.DataFrame
    clock: Clock
    reason: str

    @property
    def fits(self) -> bool:
        """Whether the waits fit into the collectives' kernels.

        In a synchronising collective a rank waits inside its kernel, so the kernel lasts at least
        as long as the wait. If most waits are longer, the clocks do not agree.
        """
        waits = self.table.filter(pl.col("kind").is_in(SYNCHRONISING))
        beyond = (waits["wait_ns"] - waits["dur_ns"] - TOLERATED_NS).clip(lower_bound=0)
        return 2 * int(beyond.sum()) <= int(waits["wait_ns"].sum())


def align(matched: pl.DataFrame, ranks: Sequence[int], clock: Clock | str) -> Aligned:
    """Bring matched collectives onto one clock.

    Args:
        matched: `Matched.table`.
        ranks: The ranks, those without a matched collective included.
        clock: How.
    """
    offsets = _offsets(matched, ranks)
    used, reason = choose_clock(Clock(clock), offsets)
    if used is Clock.RECORDED:
        offsets = offsets.with_columns(offset_ns=pl.lit(0, pl.Int64))
    aligned = matched.join(offsets, on="rank", how="left", maintain_order="left").with_columns(
        arrival_ns=pl.col("start_ns") - pl.col("offset_ns"),
        end_ns=pl.col("end_ns") - pl.col("offset_ns"),
    )
    return Aligned(with_waits(aligned), offsets, used, reason)


def with_waits(common: pl.DataFrame) -> pl.DataFrame:
    """Adds waits and spreads to matched collectives whose times are on a common clock.

    Args:
        common: Columns of `Matched.table`, `arrival_ns` and `end_ns` on the common clock.

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


def _offsets(matched: pl.DataFrame, ranks: Sequence[int]) -> pl.DataFrame:
    """Offset of each rank's clock, from the ends of synchronising collectives."""
    ends = matched.filter(pl.col("kind").is_in(SYNCHRONISING)).with_columns(
        late=pl.col("end_ns") - pl.col("end_ns").median().over("key")
    )
    measured = ends.group_by("rank").agg(offset_ns=pl.col("late").median().round().cast(pl.Int64))
    return (
        pl.DataFrame({"rank": list(ranks)}, schema={"rank": pl.Int64})
        .join(measured, on="rank", how="left", maintain_order="left")
        .with_columns(
            measured=pl.col("offset_ns").is_not_null(), offset_ns=pl.col("offset_ns").fill_null(0)
        )
    )


def choose_clock(clock: Clock, offsets: pl.DataFrame) -> tuple[Clock, str]:
    """Decides whether to take offsets off, and says why.

    Args:
        clock: What was asked for.
        offsets: rank, offset_ns, measured.
    """
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
