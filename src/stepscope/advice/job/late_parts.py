"""Which parts of its step take longer on a late rank than on the others."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence

from stepscope.advice.evidence.other_ranks import LongerPart
from stepscope.advice.rank.summary import RankSummary
from stepscope.analysis.selection.partition import Partition

NOT_OWN = ("communication", "exposed communication", "idle: cause not recorded")
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
        if name not in NOT_OWN
    ]
    longer = [part for part in found if part.more_ns > 0]
    return tuple(sorted(longer, key=lambda part: (-part.more_ns, part.name)))


def _mean_ns(partition: Partition, name: str) -> float:
    return partition.of(name) / max(1, partition.steps)
