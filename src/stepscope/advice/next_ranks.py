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
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.ranks.matching import SYNCHRONISING
from stepscope.analysis.stragglers import StragglerReport
from stepscope.trace.arrays.intervals import Int64Array
from stepscope.trace.machine.arrays import Written
from stepscope.trace.machine.jit import WorkSoFar, jit

_FOLLOWED = WorkSoFar()
_PAYS_FROM = 100_000
"""Arrivals from which following them pays for loading machine code."""


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


@dataclass(frozen=True)
class Meetings:
    """The collectives of several ranks in the order in which the last rank came.

    Attributes:
        ranks: Those that meet, ascending.
        first: Of each collective, where its arrivals begin; one more at the end.
        place: Of each arrival, the place of its rank in `ranks`.
        waits_ns: Of each arrival, how long the rank waits for the last one.
        is_meeting: Of each collective, 1 if no rank leaves it before all have come, else 0.
    """

    ranks: Int64Array
    first: Int64Array
    place: Int64Array
    waits_ns: Int64Array
    is_meeting: Int64Array

    @classmethod
    def of(cls, report: StragglerReport) -> Meetings:
        """Those of ranks whose collectives are matched."""
        kinds = report.sets.select("set", meets=pl.col("kind").is_in(SYNCHRONISING))
        last = pl.col("arrival_ns") + pl.col("wait_ns")
        rows = (
            report.arrivals.join(kinds, on="set", how="left", maintain_order="left")
            .with_columns(last=last.max().over("set"))
            .sort("last", "set", "rank")
        )
        ranks, place = np.unique(rows["rank"].to_numpy(), return_inverse=True)
        first = np.flatnonzero(np.diff(rows["set"].to_numpy(), prepend=-1))
        return cls(
            ranks.astype(np.int64),
            np.append(first, len(rows)).astype(np.int64),
            place.reshape(-1).astype(np.int64),
            rows["wait_ns"].to_numpy().astype(np.int64),
            rows["meets"].to_numpy()[first].astype(np.int64),
        )

    def next_after(self, fixed: Collection[int]) -> Next | None:
        """What holds the job up once some ranks are never late; None if there are no others.

        Args:
            fixed: The ranks that are never late.
        """
        is_fixed = np.isin(self.ranks, list(fixed))
        if is_fixed.all():
            return None
        count = len(self.ranks)
        earlier, up_to = np.zeros(count, np.int64), np.zeros(count, np.int64)
        columns = (
            self.first,
            self.place,
            self.waits_ns,
            self.is_meeting,
            is_fixed.astype(np.int64),
        )
        if _FOLLOWED.should_compile(len(self.place), _PAYS_FROM):
            jit(follow)(*columns, earlier, up_to)
        else:
            # Lists of Python integers are several times faster to walk than arrays.
            first, place, waits, meets, fixed_or_not = (column.tolist() for column in columns)
            so_far: Any = earlier.tolist()
            shares: Any = up_to.tolist()
            follow(first, place, waits, meets, fixed_or_not, so_far, shares)
            earlier, up_to = np.array(so_far, np.int64), np.array(shares, np.int64)
        by_wait = np.bincount(self.place, self.waits_ns, count)
        order = np.lexsort((self.ranks, by_wait, -up_to, earlier))
        place_of_next = order[~is_fixed[order]][0]
        return Next(int(earlier[place_of_next]), int(self.ranks[place_of_next]))


def follow(
    first: Int64Array,
    place: Int64Array,
    waits: Int64Array,
    meets: Int64Array,
    is_fixed: Int64Array,
    earlier: Written[np.int64],
    up_to: Written[np.int64],
) -> None:
    """Fills in how much earlier each rank is at most, and how much of that is up to it.

    `first` has one number more than `meets`; its numbers are places in `place` and `waits`, which
    are of the same length. The numbers of `place` are places in the other arrays. So indices lie
    inside.
    """
    for meeting in range(len(meets)):
        least = -1
        who = -1
        most = 0
        for row in range(first[meeting], first[meeting + 1]):
            rank = place[row]
            if is_fixed[rank] == 0:
                allowed = earlier[rank] + waits[row]
                most = max(most, earlier[rank])
                if who < 0 or allowed < least:
                    least = allowed
                    who = rank
        if who >= 0 and meets[meeting] == 1:
            up_to[who] = up_to[who] + max(0, least - most)
        for row in range(first[meeting], first[meeting + 1]):
            rank = place[row]
            if is_fixed[rank] == 0:
                if meets[meeting] == 1:
                    earlier[rank] = max(earlier[rank], least)
                else:
                    earlier[rank] = earlier[rank] + waits[row]
