"""How much earlier a job ends at most once some of its ranks are never late, by hand."""

from __future__ import annotations

import random

import polars as pl
import pytest

from stepscope.advice import next_ranks
from stepscope.advice.next_ranks import Meetings, Next
from stepscope.analysis.ranks.clocks import Clock
from stepscope.analysis.selection.scope import AnsweredScope, Scope
from stepscope.analysis.stragglers import StragglerReport


def report(*sets: dict[int, int], kind: str = "all_reduce") -> StragglerReport:
    """Collectives one after the other: by rank, when it comes to each, in ns after the first."""
    arrivals = [
        (number, rank, 1000 * number + at, max(came.values()) - at)
        for number, came in enumerate(sets)
        for rank, at in came.items()
    ]
    columns = ["set", "rank", "arrival_ns", "wait_ns"]
    scope = AnsweredScope(Scope(), (), (), 0, {})
    return StragglerReport(
        straggler=None,
        ranks=pl.DataFrame(),
        sets=pl.DataFrame({"set": list(range(len(sets))), "kind": [kind] * len(sets)}),
        arrivals=pl.DataFrame(arrivals, schema=columns, orient="row"),
        clock=Clock.RECORDED,
        clock_reason="",
        matched_by="",
        scopes={},
        scope=scope,
        notes=(),
    )


@pytest.mark.parametrize(
    ("sets", "fixed", "found"),
    [
        # The next to come limits it, in each collective anew.
        ([{0: 0, 1: 90, 2: 60}], [1], Next(30, 2)),
        ([{0: 0, 1: 90, 2: 60}, {0: 60, 1: 90, 2: 0}], [1], Next(60, 0)),
        # A rank that comes last itself comes earlier by what it came earlier from the one before.
        ([{0: 0, 1: 90, 2: 60}, {0: 0, 1: 0, 2: 50}], [1], Next(30, 2)),
        ([{0: 0, 1: 90}, {0: 80, 1: 0}], [1], Next(90, 0)),
        # Who is fixed together is.
        ([{0: 0, 1: 90, 2: 60}], [1, 2], Next(90, 0)),
        # A delay that is passed on to another group goes away with its cause.
        ([{0: 0, 1: 90}, {0: 90, 2: 10, 3: 0}], [1], Next(80, 2)),
        # Ranks that never meet the fixed ones gain nothing, and the job must wait for them.
        ([{0: 0, 1: 90}, {2: 0, 3: 40}], [1], Next(0, 3)),
        ([{0: 0, 1: 90}], [0, 1], None),
    ],
)
def test_collectives_are_followed_one_after_the_other(sets, fixed, found):
    assert Meetings.of(report(*sets)).next_after(fixed) == found


def test_a_rank_waits_by_itself_where_ranks_may_leave_before_all_have_come():
    came = report({0: 0, 1: 90, 2: 60}, kind="broadcast")
    assert Meetings.of(came).next_after([1]) == Next(30, 2)


def test_machine_code_follows_as_python_does(monkeypatch):
    dice = random.Random(1)
    sets = [
        {rank: dice.randrange(100) for rank in dice.sample(range(8), dice.randint(2, 8))}
        for _ in range(300)
    ]
    meetings = [Meetings.of(report(*sets, kind=kind)) for kind in ("all_reduce", "broadcast")]
    fixed = [[], [3], [0, 5], list(range(7))]
    monkeypatch.setattr(next_ranks, "_PAYS_FROM", 10**9)
    in_python = [met.next_after(ranks) for met in meetings for ranks in fixed]
    monkeypatch.setattr(next_ranks, "_PAYS_FROM", 0)
    assert [met.next_after(ranks) for met in meetings for ranks in fixed] == in_python
