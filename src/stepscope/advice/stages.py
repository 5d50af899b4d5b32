"""Which stage of a pipeline computes longest, from the summaries of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.advice.rank_summary import RankSummary

_LEAST_RING = 3
"""Two stages of a pipeline have as many sends and receives as each other, too."""


@dataclass(frozen=True)
class SlowStage:
    """The rank of a pipeline that computes longest.

    Attributes:
        rank: The rank.
        compute_ns: What its GPU computes in a step.
        others_ns: The same of the other ranks, on average.
        mean_ns: The same of all ranks.
        ranks: How many there are.
        may_be_ring: Whether all have as many sends and receives as each other, as in a ring, whose
            ranks do the same work. The first and the last stage of a pipeline have fewer, unless
            each stage has several chunks of layers.
    """

    rank: int
    compute_ns: int
    others_ns: int
    mean_ns: int
    ranks: int
    may_be_ring: bool = False


def slow_stage(ranks: Sequence[RankSummary]) -> SlowStage | None:
    """The rank that computes longest; None where fewer than two ranks send or receive."""
    computing = {
        rank.rank: ns for rank in ranks if rank.exchanges and (ns := rank.compute_ns) is not None
    }
    if len(computing) < 2:
        return None
    slowest = max(computing, key=lambda rank: (computing[rank], -rank))
    whole = sum(computing.values())
    others = (whole - computing[slowest]) / (len(computing) - 1)
    mean = whole / len(computing)
    counts = {rank.exchanges_per_step for rank in ranks if rank.rank in computing}
    return SlowStage(
        slowest,
        computing[slowest],
        round(others),
        round(mean),
        len(computing),
        len(computing) >= _LEAST_RING and len(counts) == 1,
    )
