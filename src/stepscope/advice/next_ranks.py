"""How much earlier a job ends at most if some of its ranks are never late.

What waiting costs a rank does not tell that alone: a rank may wait long in one collective and come
nearly last to another, and then it is the next one there. Its slack in one does not help in the
other. So collectives are followed one after the other, in the order in which the last rank came.
None ends earlier than all the other ranks allow: as much as the one that waits least in it waits,
and as it comes earlier itself because of collectives before. That is a bound: work between
collectives may hold a rank up as well, and by how much an end moves is not less than by how much
that does which depends on it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import polars as pl

from stepscope.analysis.ranks.matching import SYNCHRONISING
from stepscope.analysis.stragglers import StragglerReport


@dataclass(frozen=True)
class Next:
    """What holds a job up once some ranks are never late.

    Attributes:
        most_ns: How much earlier it ends at most, over all that was recorded.
        rank: The rank that sets the pace then: of those that come no earlier than that, the one
            that most of it is up to.
    """

    most_ns: int
    rank: int


def next_after(report: StragglerReport, fixed: Collection[int]) -> Next | None:
    """What holds a job up once some ranks are never late; None if there are no others.

    Args:
        report: The ranks' collectives, matched.
        fixed: The ranks that are never late.
    """
    others = report.arrivals.filter(~pl.col("rank").is_in(list(fixed)))
    if others.is_empty():
        return None
    kinds = report.sets.select("set", meets=pl.col("kind").is_in(SYNCHRONISING))
    last = pl.col("arrival_ns") + pl.col("wait_ns")
    rows = (
        others.join(kinds, on="set", how="left")
        .with_columns(last=last.max().over("set"))
        .sort("last", "set", "rank")
    )
    ranks, place = np.unique(rows["rank"].to_numpy(), return_inverse=True)
    waits = rows["wait_ns"].to_numpy().astype(np.int64)
    meets = rows["meets"].to_numpy()
    first = np.flatnonzero(np.diff(rows["set"].to_numpy(), prepend=-1))
    earlier = np.zeros(len(ranks), np.int64)
    held_up = np.zeros(len(ranks), np.int64)
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(rows)], strict=True):
        members = place[begin:end]
        allowed = earlier[members] + waits[begin:end]
        if meets[begin]:
            least = int(np.argmin(allowed))
            gained = allowed[least] - int(earlier[members].max())
            held_up[members[least]] += max(0, gained)
            allowed = np.full(len(members), allowed[least])
        earlier[members] = np.maximum(earlier[members], allowed)
    by_wait = np.bincount(place, waits, len(ranks))
    order = np.lexsort((ranks, by_wait, -held_up, earlier))
    return Next(int(earlier.min()), int(ranks[order[0]]))
