"""What late ranks cost, from step records: simulated jobs, run again without what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.simulator.many_ranks import (
    KERNELS,
    JobTimes,
    ManyRanks,
    Plant,
    random_job,
    simulate_job,
)
from tests.support.simulator.many_ranks_files import step_lines

from stepscope.run.step_record import decode_step
from stepscope.skew.rank_skew import RankSkew, RankSteps, rank_skew

JOB = ManyRanks(4, seed=3, wander=0.02, has_record=True)


def _judged(job: ManyRanks, *, with_work: bool = False) -> tuple[RankSkew, float]:
    """The skew, and what a step is shorter by without what is wrong."""
    times = simulate_job(job)
    ranks = [
        RankSteps(rank, [decode_step(line.encode()) for line in step_lines(times, rank)], 0)
        for rank in range(job.ranks)
    ]
    skew = rank_skew(ranks, _backward_work(times) if with_work else 0.0)
    assert skew is not None
    return skew, times.step_ns - simulate_job(job.healed).step_ns


def _backward_work(times: JobTimes) -> float:
    spent = (times.work_end - times.work_start).mean(axis=(0, 2))
    return float(spent[KERNELS:-1].sum() / spent[:KERNELS].sum())


def test_backward_is_as_much_longer_as_forward_where_its_work_is_known():
    job = replace(JOB, plant=Plant("compute", (2,), 0.3))
    partly, true_ns = _judged(job)
    whole, _ = _judged(job, with_work=True)
    assert partly.late == whole.late == (2,)
    assert partly.saving_ns < 0.6 * true_ns
    assert whole.saving_ns == pytest.approx(true_ns, rel=0.1)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_what_the_record_shows_of_the_cause_is_taken_from_each_step(on_gpu):
    job = replace(JOB, on_gpu=on_gpu, wander=0.04, plant=Plant("input", (1,), 0.2))
    skew, true_ns = _judged(job, with_work=on_gpu)
    assert (skew.late, skew.cause) == ((1,), "it waits for its input")
    assert skew.saving_ns == pytest.approx(true_ns, rel=0.1)


@pytest.mark.parametrize("kind", ["collector", "nth"])
def test_members_of_its_group_that_wait_for_a_late_rank_are_not_late(kind):
    every = 5 if kind == "nth" else 1
    job = replace(JOB, ranks=8, group=4, plant=Plant(kind, (5,), 0.3 * every, every))
    skew, _ = _judged(job)
    assert skew.accuses
    assert skew.late == (5,)


def test_one_long_pause_does_not_excuse_a_rank_that_is_late_every_nth_step():
    skew, true_ns = _judged(random_job(92038, "nth", 8))
    assert skew.accuses
    assert skew.late == (7,)
    assert skew.saving_ns == pytest.approx(true_ns, rel=0.1)
