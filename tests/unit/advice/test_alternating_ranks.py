"""Ranks that are late in turn: no one is accused, and the report says so."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, Length, ms
from tests.support.one_step import check_diagnosis
from tests.support.planted import GEMM, MM
from tests.support.ranks_that_wait import meet, steady_step_ns, write_ranks
from tests.support.stragglers import find_stragglers

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.evidence.alternating_ranks import find_alternating
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis.sentences import between_ranks

RANKS, STEPS = 4, 9


def _job(
    late_rank_of_step: Sequence[int | None], late_ms: Sequence[float] = (8,) * RANKS
) -> list[GpuTrace]:
    """Ranks that meet in each step, of which one waits longer for its batch."""

    def build(rank: int, length: Length) -> GpuTrace:
        t = GpuTrace(rank=rank, world_size=RANKS, device=rank)
        for late in late_rank_of_step:
            with t.step():
                if late == rank:
                    t.data_wait(ms(late_ms[rank]))
                for _ in range(4):
                    t.op("aten::mm", **MM).launch(GEMM, ms(4))
                    reduced = t.collective("all_reduce", 96 << 20, length)
                t.wait_collective(reduced)
                t.item()
        return t

    return meet(build, RANKS, ms(1))


def _all_steps_ns(traces: Sequence[GpuTrace]) -> int:
    """From the first step to the end of the GPU's work."""
    return max(max(one.end_ns for one in t.work) for t in traces) - GpuTrace().start_ns


def _judge(tmp_path, late: Sequence[int | None]) -> tuple[Diagnosis, list[GpuTrace]]:
    traces = _job(late)
    return diagnose(open_run(write_ranks(traces, tmp_path / "job"))), traces


def test_a_report_says_that_each_step_waits_for_another_rank(tmp_path):
    diagnosis, slow = _judge(tmp_path, [step % RANKS for step in range(STEPS)])
    said = between_ranks(diagnosis)
    # Nine steps are two whole rounds and one step more, which does not count.
    assert said.startswith("no one rank is late, they take turns: the others wait for rank 0 in 2")
    assert "rank 1 in 2, rank 2 in 2, rank 3 in 2 of 8 steps" in said
    verdict = find_stragglers([(rank, t.load()) for rank, t in enumerate(slow)]).verdict
    assert verdict.startswith(
        "no rank makes the others wait for an unusual reason; they take turns"
    )
    assert verdict.endswith("rank 0 in 3, rank 1 in 2, rank 2 in 2, rank 3 in 2 of 9 steps")
    waiting = [one for one in diagnosis.findings if one.id == "rank-waiting"]
    assert len(waiting) == RANKS
    assert all("each step for another rank" in one.title for one in waiting)
    assert "late-rank" not in {one.id for one in diagnosis.findings}
    # What a rank is promised is what the job would gain, also in the steps in which it is late.
    fast = _job([None] * STEPS)
    true_ns = steady_step_ns(slow[0], 0, STEPS - 1) - steady_step_ns(fast[0], 0, STEPS - 1)
    for one in waiting:
        assert one.saving_ns is not None
        assert one.saving_ns == pytest.approx(true_ns, rel=0.05)
    check_diagnosis(diagnosis)


def test_two_ranks_in_turn_are_promised_what_all_are(tmp_path):
    """Either waits only for the other, but neither is late alone."""
    steps = STEPS - STEPS % 2
    diagnosis, slow = _judge(tmp_path, [(0, 3)[step % 2] for step in range(steps)])
    fast = _job([None] * steps)
    true_ns = steady_step_ns(slow[0], 0, steps - 1) - steady_step_ns(fast[0], 0, steps - 1)
    waiting = {one.rank: one for one in diagnosis.findings if one.id == "rank-waiting"}
    assert set(waiting) == set(range(RANKS))
    for one in waiting.values():
        assert "each step for another rank" in one.title
        assert one.saving_ns == pytest.approx(true_ns, rel=0.05)
    check_diagnosis(diagnosis)


def test_one_that_is_nearly_always_late_is_named(tmp_path):
    diagnosis, _ = _judge(tmp_path, [2, 2, 2, 1, 2, 2, 2, 0, 2])
    assert between_ranks(diagnosis).startswith("rank 2 arrives last")
    titles = {one.title for one in diagnosis.findings if one.id == "rank-waiting" and one.rank != 2}
    assert titles == {"it waits for other ranks in its collectives, mostly for rank 2"}


def test_where_nobody_waits_nobody_is_late_and_waiting_costs_nothing(tmp_path):
    diagnosis, _ = _judge(tmp_path, [None] * STEPS)
    between = diagnosis.between
    assert between is not None
    assert between.straggler is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert between.others_wait_ns == between.wait_ns == 0
    assert between_ranks(diagnosis) == ""


def _waits(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["step", "last_rank", "wait_ns"], orient="row")


def test_turns_need_steps_that_each_wait_for_one_rank():
    alternating = find_alternating(_waits((0, 1, 9), (0, 2, 1), (1, 2, 9), (2, 1, 5), (3, 0, 8)))
    assert alternating is not None
    assert alternating.steps_by_rank == ((1, 2), (0, 1), (2, 1))
    assert alternating.text() == "rank 1 in 2, rank 0 in 1, rank 2 in 1 of 4 steps"
    # Too few steps; several ranks late in the same steps; nobody waits.
    assert find_alternating(_waits((0, 1, 9), (1, 2, 9))) is None
    assert (
        find_alternating(_waits(*((step, rank, 5) for step in range(4) for rank in range(3))))
        is None
    )
    assert find_alternating(_waits(*((step, 0, 0) for step in range(4)))) is None


MIXED = [2, 2, 1, 2, 2, 0, 2, 2, 2, 3, 2, 2, 2]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> tuple[Diagnosis, list[GpuTrace]]:
    return _judge(tmp_path_factory.mktemp("mixed"), MIXED)


def test_mending_a_rank_that_is_late_in_most_steps_brings_what_it_costs_in_these(mixed):
    """In the other steps it waits like all others, which takes nothing off what mending brings."""
    diagnosis, slow = mixed
    mended = _job([None if late == 2 else late for late in MIXED])
    steps = len(MIXED)
    true_ns = _all_steps_ns(slow) - _all_steps_ns(mended)
    (late,) = (one for one in diagnosis.findings if one.id == "late-rank")
    assert late.saving_ns == pytest.approx(true_ns / steps, rel=0.02)
    waiting = {one.rank: one for one in diagnosis.findings if one.id == "rank-waiting"}
    for rank in (0, 1, 3):
        assert waiting[rank].saving_ns == pytest.approx(late.saving_ns, rel=0.001)
        assert "rank 2 comes no later than the next" in waiting[rank].assumption
    check_diagnosis(diagnosis)


def test_turns_of_different_lengths_are_worth_the_same_to_all(tmp_path):
    """Not more to a rank that is late for shorter than the others."""
    late_ms = [2, 5, 8, 11]
    steps = 8
    slow = _job([step % RANKS for step in range(steps)], late_ms)
    diagnosis = diagnose(open_run(write_ranks(slow, tmp_path / "job")))
    true_ns = _all_steps_ns(slow) - _all_steps_ns(_job([None] * steps))
    waiting = [one for one in diagnosis.findings if one.id == "rank-waiting"]
    assert len(waiting) == RANKS
    for one in waiting:
        assert one.saving_ns == pytest.approx(true_ns / steps, rel=0.02)
    check_diagnosis(diagnosis)


def test_what_all_ranks_compute_alike_makes_none_late(mixed):
    """Faster products save more on the late rank, because the others wait for it anyway."""
    diagnosis, _ = mixed
    order = [(one.id, one.rank) for one in diagnosis.findings]
    products = {one.rank: one for one in diagnosis.findings if one.id == "slow-matmuls"}
    assert (products[2].saving_ns or 0) > 2 * (products[0].saving_ns or 0)
    assert diagnosis.verdict.startswith("slow-matmuls")
    assert "late" not in diagnosis.verdict
    # What does make it late stands right above.
    assert order.index(("input-bound", 2)) < order.index(("late-rank", 2))
    assert order.index(("late-rank", 2)) < order.index(("slow-matmuls", 0))
