"""Gradients reduced in a loop: the job that reduces them together is the judge."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, Length, us
from tests.support.planted import GEMM, MM, SMALL
from tests.support.ranks_that_wait import meet, steady_step_ns, write_ranks

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run

STEPS = 5


def _job(collectives: int) -> list[GpuTrace]:
    """Two ranks that reduce their gradients in so many collectives, with copies around each."""

    def build(rank: int, length: Length) -> GpuTrace:
        t = GpuTrace(rank=rank, world_size=2, device=rank)
        for _ in range(STEPS):
            with t.step():
                for _ in range(30):
                    t.op("aten::add", before=us(15)).launch(SMALL, us(4), call_ns=us(5))
                for _ in range(8):
                    t.op("aten::mm", before=us(15), **MM).launch(GEMM, us(100))
                for _ in range(collectives):
                    t.op("aten::div", before=us(20)).launch(SMALL, us(4), call_ns=us(5))
                    t.collective("all_reduce", 4 << 10, length)
                    t.op("aten::copy_", before=us(20)).launch(SMALL, us(4), call_ns=us(5))
                for _ in range(60):
                    t.op("aten::addcdiv_", before=us(15)).launch(SMALL, us(4), call_ns=us(5))
                t.item()
        t.sync()
        return t

    return meet(build, 2, us(12))


@pytest.mark.parametrize("gradients", [30, 80])
def test_the_gain_of_reducing_gradients_together(tmp_path, gradients):
    slow, fast = _job(gradients), _job(gradients // 20)
    gain_ns = steady_step_ns(slow[0], 0, STEPS - 1) - steady_step_ns(fast[0], 0, STEPS - 1)
    found = diagnose(open_run(write_ranks(slow, tmp_path / "job"))).findings
    of_both = [one for one in found if one.id == "many-small-collectives"]
    assert [one.rank for one in of_both] == [0, 1]
    for one in of_both:
        assert one.saving_ns == pytest.approx(gain_ns, rel=0.15)
    names = [one.id for one in found]
    assert names.index("many-small-collectives") < names.index("many-small-kernels")
