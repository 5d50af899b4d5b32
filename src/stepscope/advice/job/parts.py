"""Which parts of its step take longer on a rank than on the others."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Collection, Sequence

import polars as pl

from stepscope.advice.evidence.other_ranks import LongerPart
from stepscope.advice.rank.summary import RankSummary
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.selection.partition import Partition

ODD_PARTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int64,
    "part": pl.String,  # of the step
    "per_step_ns": pl.Int64,
    "others_ns": pl.Int64,  # median of the other ranks' means per step
}
"""One row per part of a rank's step that sets it apart, the greatest difference first."""

_NOT_OWN = ("communication", "exposed communication", "idle: cause not recorded")
"""Parts that tell nothing of the rank itself: it suffers from others in them, or its recorder
missed something."""


def longer_parts(
    ranks: Sequence[RankSummary], late: Collection[int], *, recorded: bool = False
) -> tuple[LongerPart, ...]:
    """The parts that take longer on all late ranks than on the others, the most longer first.

    Only steps that were divided alike are compared.

    Args:
        recorded: Whether to compare recorded steps where others are shown: without a GPU, only a
            trace divides the waiting for others from what a rank does itself.
    """
    divided = [
        (rank.rank in late, rank.recorded_partition if recorded else rank.partition)
        for rank in ranks
    ]
    known = [(is_late, one) for is_late, one in divided if one is not None and one.parts]
    basis = next((one.basis for is_late, one in known if is_late), None)
    own = [one for is_late, one in known if is_late and one.basis == basis]
    others = [one for is_late, one in known if not is_late and one.basis == basis]
    if not own or not others:
        return ()
    names = dict.fromkeys(part.name for one in own for part in one.parts)
    found = [
        LongerPart(
            name,
            round(min(_mean_ns(one, name) for one in own)),
            round(statistics.median(_mean_ns(one, name) for one in others)),
        )
        for name in names
        if name not in _NOT_OWN
    ]
    longer = [part for part in found if part.more_ns > 0]
    return tuple(sorted(longer, key=lambda part: (-part.more_ns, part.name)))


def _mean_ns(partition: Partition, name: str) -> float:
    return partition.of(name) / max(1, partition.steps)


def odd_parts(partitions: Sequence[tuple[int, Partition]], limits: Thresholds) -> pl.DataFrame:
    """What takes far longer on one rank than on the others.

    Returns:
        Columns `ODD_PARTS`.
    """
    means: dict[tuple[str, str], list[float]] = {}
    for basis in {partition.basis for _, partition in partitions}:
        alike = [partition for _, partition in partitions if partition.basis == basis]
        for name in {part.name for one in alike for part in one.parts}.difference(_NOT_OWN):
            means[basis, name] = sorted(_mean_ns(one, name) for one in alike)
    rows = []
    for rank, mine in partitions:
        step_ns = mine.total_ns / max(1, mine.steps)
        for part in mine.parts:
            among = means.get((mine.basis, part.name), [])
            if len(among) < 2:
                continue
            taken = mine.per_step_ns(part)
            usual = round(_median_without(among, _mean_ns(mine, part.name)))
            is_long = taken >= limits.odd_rank_factor * usual
            if is_long and taken - usual >= max(1, limits.odd_rank_share * step_ns):
                rows.append((rank, part.name, taken, usual))
    table = pl.DataFrame(rows, schema=ODD_PARTS, orient="row")
    return table.sort(
        pl.col("per_step_ns") - pl.col("others_ns"), "rank", "part", descending=[True, False, False]
    )


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of values in order, without one that is equal to `value`.

    Of an even number the upper one: of three ranks, two that wait in backward for the third are
    alike, and neither takes longer than "the others".
    """
    left_out = bisect.bisect_left(ordered, value)
    place = (len(ordered) - 1) // 2
    return ordered[place if place < left_out else place + 1]
