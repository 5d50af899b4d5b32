"""What a late rank costs: the job simulated with and without it is the judge."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.gpu_trace import GpuTrace, Length, ms, us
from tests.support.one_step import check_diagnosis
from tests.support.planted import GEMM, MM
from tests.support.ranks_that_wait import meet, steady_step_ns, write_ranks

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Severity
from stepscope.opening.reader import open_run
from stepscope.run.figures import duration

TRANSFER_NS = ms(1)
STEPS = 6
BUCKETS = 4


def _job(
    bucket_ns: Sequence[int], turns_ns: Sequence[int] = (0, 0, 0, 0), *, stops: bool = False
) -> list[GpuTrace]:
    """Data-parallel ranks whose all-reduces run beside the rest of the backward pass.

    Args:
        bucket_ns: How long each rank computes for a bucket of gradients.
        turns_ns: By how much longer it computes for every second one, and shorter for the others.
        stops: Whether each rank reads a result of the GPU in every step.
    """

    def build(rank: int, length: Length) -> GpuTrace:
        t = GpuTrace(rank=rank, world_size=len(bucket_ns), device=rank)
        for _ in range(STEPS):
            with t.step():
                for bucket in range(BUCKETS):
                    turn_ns = turns_ns[rank] * (-1) ** bucket
                    t.op("aten::mm", **MM).launch(GEMM, bucket_ns[rank] + turn_ns)
                    reduced = t.collective("all_reduce", 96 << 20, length)
                t.wait_collective(reduced)
                t.op("aten::_fused_adamw_").launch("multi_tensor_apply_kernel", ms(1))
                if stops:
                    t.item()
        t.sync()
        return t

    return meet(build, len(bucket_ns), TRANSFER_NS)


def _gain_ns(slow: Sequence[GpuTrace], fast: Sequence[GpuTrace]) -> int:
    before, after = (max(steady_step_ns(t, 1, STEPS - 1) for t in job) for job in (slow, fast))
    return before - after


def _late(diagnosis: Diagnosis) -> dict[int, int | None]:
    return {one.rank: one.saving_ns for one in diagnosis.findings if one.id == "late-rank"}


@pytest.mark.parametrize("stops", [False, True])
def test_waits_beside_which_the_gpu_computes_are_not_saved(tmp_path, stops):
    """The all-reduces wait for the slow rank all through the backward pass, beside their work."""
    usual = [ms(4)] * 4
    slow = _job([ms(4), ms(6), ms(4), ms(4)], stops=stops)
    gain_ns = _gain_ns(slow, _job(usual, stops=stops))
    diagnosis = diagnose(open_run(write_ranks(slow, tmp_path / "job")))
    assert _late(diagnosis) == {1: pytest.approx(gain_ns, rel=0.05)}
    between = diagnosis.between
    assert between is not None
    waited = {row["rank"]: row["total_wait_ns"] for row in between.report.ranks.to_dicts()}
    for row in between.table.filter(rank=0).to_dicts():
        assert row["own_ns"] == pytest.approx(steady_step_ns(slow[1], 1, 5) - gain_ns, rel=0.05)
        # All its waits together are far longer, because most go on beside its work.
        assert waited[0] / between.steps > 1.5 * row["wait_ns"]


def test_the_next_latest_rank_limits_the_saving(tmp_path):
    bucket_ns = [ms(4), ms(4.5), ms(5), ms(5.5)]
    slow = _job(bucket_ns)
    gain_ns = _gain_ns(slow, _job([*bucket_ns[:3], bucket_ns[2]]))
    diagnosis = diagnose(open_run(write_ranks(slow, tmp_path / "job")))
    assert _late(diagnosis) == {3: pytest.approx(gain_ns, rel=0.05)}


@pytest.mark.parametrize(
    ("bucket_ns", "is_notable"), [([4, 4.5, 5, 5.5], True), ([4, 5.2, 5.3, 5.4], False)]
)
def test_who_waits_longest_is_promised_no_more_than_mending_the_late_rank_brings(
    tmp_path, bucket_ns, is_notable
):
    """Rank 0 waits for rank 3, but without rank 3 it would wait for rank 2."""
    lengths = [ms(length) for length in bucket_ns]
    slow = _job(lengths)
    gain_ns = _gain_ns(slow, _job([*lengths[:3], lengths[2]]))
    diagnosis = diagnose(open_run(write_ranks(slow, tmp_path / "job")))
    check_diagnosis(diagnosis)
    waiting = {one.rank: one for one in diagnosis.findings if one.id == "rank-waiting"}
    assert 0 in waiting
    # What it would be worth if the others came with it.
    assert diagnosis.between is not None
    cost_ns = diagnosis.between.table.filter(rank=0)["wait_ns"].item()
    assert cost_ns > 1.9 * gain_ns
    for one in waiting.values():
        if is_notable:
            assert one.saving_ns == pytest.approx(gain_ns, rel=0.1)
            assert one.severity is Severity.LOW
        else:
            assert one.saving_ns is None
            assert one.severity is Severity.INFO
            assert one.saving_reason.startswith("fixing rank 3 alone brings little, because rank 2")
            assert one.advice.startswith("Begin with what slows all ranks")
    said = "rank 3 comes no later than the next, rank 2, which then limits the step"
    expected = f"{said}; {duration(cost_ns)} only if " if is_notable else ""
    assert waiting[0].assumption.startswith(expected)
    assert bool(waiting[0].assumption) == is_notable
    (rank,) = (one for one in diagnosis.ranks if one.rank == 0)
    assert rank.together_ns is not None
    assert rank.together_own_ns is not None
    assert rank.together_ns <= rank.together_own_ns + gain_ns * 1.1


@pytest.mark.parametrize(("late_ms", "is_notable"), [(40, True), (66, False)])
def test_an_outlier_is_worth_no_more_than_the_next_rank_allows(tmp_path, late_ms, is_notable):
    """In two steps rank 2 takes 70 ms more, and rank 1 takes 40 or 66 ms more."""

    def job(more_ms: tuple[int, int, int]) -> list[GpuTrace]:
        def build(rank: int, length: Length) -> GpuTrace:
            t = GpuTrace(rank=rank, world_size=3, device=rank)
            for step in range(12):
                with t.step():
                    t.op("aten::mm", **MM).launch(GEMM, ms(30))
                    t.python(ms(more_ms[rank] if step in (4, 8) else 0))
                    t.wait_collective(t.collective("all_reduce", 96 << 20, length))
                    t.item()
            return t

        return meet(build, 3, TRANSFER_NS)

    slow, mended = job((0, late_ms, 70)), job((0, late_ms, late_ms))
    gain_ns = max(steady_step_ns(t, 0, 11) for t in slow)
    gain_ns -= max(steady_step_ns(t, 0, 11) for t in mended)
    diagnosis = diagnose(open_run(write_ranks(slow, tmp_path / "job")))
    odd = {one.rank: one for one in diagnosis.findings if one.id == "abnormal-collective"}
    if is_notable:
        assert odd[0].saving_ns is not None
        assert odd[0].saving_ns <= 1.1 * gain_ns
        assert "rank 1, which then limits the step" in odd[0].assumption
    else:
        assert odd[0].saving_ns is None
        assert "fixing rank 2 alone brings little, because rank 1" in odd[0].saving_reason


def test_two_ranks_that_are_late_in_turn_are_late_together(tmp_path):
    """Neither alone is worth mending: the job would wait for the other."""
    slow = _job([ms(4), ms(6), ms(6), ms(4)], turns_ns=[0, ms(0.5), -ms(0.5), 0])
    gain_ns = _gain_ns(slow, _job([ms(4)] * 4))
    diagnosis = diagnose(open_run(write_ranks(slow, tmp_path / "job")))
    ((rank, saving_ns),) = _late(diagnosis).items()
    assert rank in (1, 2)
    assert saving_ns == pytest.approx(gain_ns, rel=0.1)
    assert "Ranks" in diagnosis.verdict or "2 ranks come late" in diagnosis.verdict


def test_a_late_rank_costs_nothing_where_every_host_is_as_slow(tmp_path):
    """All hosts take 40 ms for a step, and one is 10 ms behind: no step is shorter without that."""

    def build(rank: int, length: Length) -> GpuTrace:
        t = GpuTrace(rank=rank, world_size=2, device=rank)
        t.python(ms(10) * rank)
        for _ in range(STEPS):
            with t.step():
                t.op("aten::mm", **MM).launch(GEMM, ms(2))
                t.wait_collective(t.collective("all_reduce", 96 << 20, length))
                t.python(ms(40))
        t.sync()
        return t

    diagnosis = diagnose(open_run(write_ranks(meet(build, 2, TRANSFER_NS), tmp_path / "job")))
    assert diagnosis.between is not None
    assert diagnosis.between.straggler == 1
    assert _late(diagnosis) == {}


@pytest.mark.slow
def test_all_ranks_of_a_slow_machine_are_late_together(tmp_path):
    """Most of them are hardly ever the last, so that little of the waiting is for each."""
    slow = {2, 3, 4, 5, 6}
    bucket_ns = [ms(6) if rank in slow else ms(4) for rank in range(12)]
    turns_ns = [us(60 * (rank % 5) - 120) for rank in range(12)]
    job = _job(bucket_ns, turns_ns)
    gain_ns = _gain_ns(job, _job([ms(4)] * 12, turns_ns))
    diagnosis = diagnose(open_run(write_ranks(job, tmp_path / "job")))
    ((rank, saving_ns),) = _late(diagnosis).items()
    assert rank in slow
    assert saving_ns == pytest.approx(gain_ns, rel=0.1)
    assert diagnosis.between is not None
    assert set(diagnosis.between.late) == slow
    (late,) = (one for one in diagnosis.findings if one.id == "late-rank")
    assert {item.label: item.value for item in late.evidence}["who comes late"] == "ranks 2 to 6"
