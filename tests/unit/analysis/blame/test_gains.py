"""What a step is shorter by once some ranks come no later than the others, by hand."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope.analysis.blame.gains import Gains, OnTime
from stepscope.analysis.blame.matched import ARRIVALS, GROUPS, match
from stepscope.analysis.blame.replay import Replay

TRANSFER_NS = 10


def gains(*sets: dict[int, int], transfers_ns: tuple[int, ...] = ()) -> Gains:
    """Collectives one after the other: by rank, when it comes to each, in ns after the first."""
    rows, groups = [], {}
    for number, came in enumerate(sets):
        ranks = tuple(came)
        group = groups.setdefault(ranks, len(groups))
        transfer_ns = transfers_ns[number] if transfers_ns else TRANSFER_NS
        end_ns = 1000 * number + max(came.values()) + transfer_ns
        rows += [
            (rank, group, number, "all_reduce", 0, 1, 1000 * number + at, end_ns)
            for rank, at in came.items()
        ]
    listed = [(at, f"group {at}", "data", list(ranks)) for ranks, at in groups.items()]
    matched = match(
        pl.DataFrame(rows, ARRIVALS, orient="row"), pl.DataFrame(listed, GROUPS, orient="row")
    )
    return Gains(matched, Replay(matched))


@pytest.mark.parametrize(
    ("sets", "ranks", "gain_ns", "next_rank"),
    [
        # The next to come limits it, in each collective anew.
        ([{0: 0, 1: 90, 2: 60}], [1], 30, 2),
        ([{0: 0, 1: 90, 2: 60}, {0: 60, 1: 90, 2: 0}], [1], 60, 0),
        # A rank that comes last itself comes earlier by what it came earlier from the one before.
        ([{0: 0, 1: 90, 2: 60}, {0: 0, 1: 0, 2: 50}], [1], 30, 2),
        ([{0: 0, 1: 90}, {0: 80, 1: 0}], [1], 90, 0),
        # Who comes on time together does.
        ([{0: 0, 1: 90, 2: 60}], [1, 2], 90, 0),
        # A delay that is passed on to another group goes away with its cause.
        ([{0: 0, 1: 90}, {0: 90, 2: 10, 3: 0}], [1], 80, 0),
        # Ranks that never meet the late ones gain nothing, and the job must wait for them.
        ([{0: 0, 1: 90}, {2: 0, 3: 40}], [1], 0, 0),
    ],
)
def test_collectives_are_followed_one_after_the_other(sets, ranks, gain_ns, next_rank):
    assert gains(*sets).on_time(ranks) == OnTime(gain_ns, next_rank, is_passing=False)


def test_where_all_ranks_come_on_time_nothing_is_told():
    assert gains({0: 0, 1: 90}).on_time([0, 1]) is None


def test_what_late_ranks_do_among_themselves_holds_nobody_up():
    """Two of four ranks have a slow link, and meet the others after it; then only by the link."""
    sets = [{0: 0, 1: 0}, {0: 500, 1: 500, 2: 0, 3: 0}, {0: 600, 1: 600}]
    found = gains(*sets, transfers_ns=(500, 10, 500)).on_time([0, 1])
    # All but the others' own way to the only collective that they take part in.
    assert found is not None
    assert found.gain_ns == 2600 + 500 - 1010
