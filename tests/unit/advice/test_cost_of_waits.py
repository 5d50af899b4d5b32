"""What a late rank costs: the job simulated with and without it is the judge."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.meeting_ranks import Lengths, meet, steady_step_ns, write_ranks
from tests.support.planted import GEMM, MM

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.run.reader import open_run

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

    def build(rank: int, lengths: Lengths) -> GpuTrace:
        t = GpuTrace(rank=rank, world_size=len(bucket_ns), device=rank)
        for _ in range(STEPS):
            with t.step():
                for bucket in range(BUCKETS):
                    turn_ns = turns_ns[rank] * (-1) ** bucket
                    t.op("aten::mm", **MM).launch(GEMM, bucket_ns[rank] + turn_ns)
                    reduced = t.collective("all_reduce", 96 << 20, lengths())
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

    def build(rank: int, lengths: Lengths) -> GpuTrace:
        t = GpuTrace(rank=rank, world_size=2, device=rank)
        t.python(ms(10) * rank)
        for _ in range(STEPS):
            with t.step():
                t.op("aten::mm", **MM).launch(GEMM, ms(2))
                t.wait_collective(t.collective("all_reduce", 96 << 20, lengths()))
                t.python(ms(40))
        t.sync()
        return t

    diagnosis = diagnose(open_run(write_ranks(meet(build, 2, TRANSFER_NS), tmp_path / "job")))
    assert diagnosis.between is not None
    assert diagnosis.between.straggler == 1
    assert _late(diagnosis) == {}
