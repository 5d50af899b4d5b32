"""How much earlier a job ends at most once some of its ranks are never late, by hand."""

from __future__ import annotations

import polars as pl
import pytest

from stepscope.advice.next_ranks import Next, next_after
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
    assert next_after(report(*sets), fixed) == found


def test_a_rank_waits_by_itself_where_ranks_may_leave_before_all_have_come():
    assert next_after(report({0: 0, 1: 90, 2: 60}, kind="broadcast"), [1]) == Next(30, 2)
