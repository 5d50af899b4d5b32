"""The frontier of the ranks' stages: planted ranks, exact sums, and what must accuse nobody."""

from __future__ import annotations

import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.support.rendered import print_blocks
from tests.support.step_records import MS, write_run

from stepscope.analysis.record.live import LiveState
from stepscope.analysis.record.watching import look_at
from stepscope.capture.ending import late_ranks
from stepscope.report.live import blocks_of
from stepscope.run.layout import RunLayout
from stepscope.run.step_record import StepRecord
from stepscope.skew.frontier import INPUT, REST, find_frontier
from stepscope.skew.rank_skew import RankSteps

START_NS = 1_700_000_000_000_000_000


def job(ranks=4, *, steps=40, extra=None, noise=0.03, seed=0):
    """Ranks that wait for a batch, compute, and meet at the end of the backward.

    Args:
        extra: (rank, stage, milliseconds), stage being "input", "forward" or "optimizer".
    """
    dice = random.Random(seed)
    records = [[] for _ in range(ranks)]
    now = [START_NS + dice.randrange(10**9) for _ in range(ranks)]  # clocks that nobody compared
    late = [0] * ranks
    for step in range(steps):
        usual = {"input": 3, "forward": 20, "backward": 40, "optimizer": 5}
        times = [
            {name: round(ms * MS * dice.lognormvariate(0, noise)) for name, ms in usual.items()}
            for _ in range(ranks)
        ]
        if extra is not None:
            rank, stage, more = extra
            times[rank][stage] += round(more * MS)
        before = ("input", "forward", "backward")
        came = [late[r] + sum(times[r][name] for name in before) for r in range(ranks)]
        met = max(came)
        for r in range(ranks):
            # The backward ends when all have met; whoever is late from the last step begins later.
            waits = met - came[r]
            whole = sum(times[r].values()) + waits + 1 * MS
            phases = {"forward": times[r]["forward"], "backward": times[r]["backward"] + waits,
                      "optimizer": times[r]["optimizer"]}  # fmt: skip
            records[r].append(StepRecord(step, now[r], whole, times[r]["input"], phases))
            now[r] += whole
        ends = [met + times[r]["optimizer"] + MS for r in range(ranks)]
        late = [end - min(ends) for end in ends]
    return [RankSteps(rank, tuple(records[rank])) for rank in range(ranks)]


def test_fifty_planted_ranks_come_first():
    """In stages that come before the ranks meet, which is where a record can tell them apart."""
    dice = random.Random(1)
    for seed in range(50):
        ranks = dice.choice((2, 4, 8, 32))
        rank, stage = dice.randrange(ranks), dice.choice(("input", "forward"))
        extra = (rank, stage, dice.uniform(8, 30))
        found = find_frontier(job(ranks, extra=extra, seed=seed))
        assert found.leader is not None, (seed, extra)
        assert (found.leader.rank, found.leader.stage) == (rank, stage)
        assert found.leader.lead_ns == pytest.approx(extra[2] * MS, rel=0.2, abs=2 * MS)


@pytest.mark.parametrize("ranks", [2, 4, 32])
def test_healthy_ranks_have_no_leader(ranks):
    for seed in range(10):
        found = find_frontier(job(ranks, seed=seed))
        assert found.leader is None
        assert found.sentence() == ""


def test_a_slow_stage_in_which_the_others_wait_cannot_be_told():
    """All backwards end together: the records say nothing of whose was slow, and nobody leads."""
    found = find_frontier(job(4, extra=(2, "backward", 30)))
    assert found.leader is None


@settings(max_examples=2 * settings.default.max_examples // 5)
@given(
    st.integers(2, 5).flatmap(
        lambda ranks: st.lists(
            st.lists(
                st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)),
                min_size=ranks,
                max_size=ranks,
            ),
            min_size=11,
            max_size=14,
        )
    )
)
def test_increments_add_up_to_the_longest_steps(steps):
    ranks = len(steps[0])
    records = [[] for _ in range(ranks)]
    for number, row in enumerate(steps):
        for rank, (wait, forward, rest) in enumerate(row):
            whole = wait + forward + rest
            records[rank].append(
                StepRecord(number, START_NS, whole, wait, {"forward": forward, "forward/a": 1})
            )
    found = find_frontier([RankSteps(r, tuple(own)) for r, own in enumerate(records)])
    assert [name for name, _ in found.stages] == [INPUT, "forward", REST]
    assert sum(ns for _, ns in found.stages) == found.total_ns
    assert found.total_ns == sum(max(map(sum, row)) for row in steps[5:])
    assert all(ns >= 0 for _, ns in found.stages)
    assert [one.lead_ns for one in found.ranks] == sorted(
        (one.lead_ns for one in found.ranks), reverse=True
    )


def test_what_cannot_be_compared_is_not():
    ranks = job(3)
    assert find_frontier(ranks[:1]) is None
    assert find_frontier([RankSteps(r.rank, r.records[:8]) for r in ranks]) is None
    staged = [RankSteps(r.rank, r.records, stage=r.rank) for r in ranks]
    assert find_frontier(staged) is None
    # Phases that overlap are longer than their step.
    odd = [
        RankSteps(rank, [StepRecord(step, START_NS, 10, 0, {"forward": 11}) for step in range(40)])
        for rank in range(3)
    ]
    assert find_frontier(odd) is None


def test_it_is_said_live_and_at_the_end(tmp_path):
    ranks = job(4, extra=(2, "input", 25))
    path = write_run(tmp_path, {rank.rank: list(rank.records) for rank in ranks})
    view = look_at(path)
    assert view.frontier.leader.rank == 2
    out = io.StringIO()
    print_blocks(blocks_of(LiveState(view, (), str(path))), Console(file=out, width=160))
    assert "rank 2 sets the pace" in out.getvalue()
    assert "mostly in input" in out.getvalue()
    verdict = late_ranks(RunLayout(path), 4)
    assert "rank 2" in verdict
    assert INPUT in verdict
    healthy = write_run(tmp_path, {r.rank: list(r.records) for r in job(4)}, "healthy")
    assert late_ranks(RunLayout(healthy), 4) == ""
    assert late_ranks(RunLayout(healthy), 1) == ""
