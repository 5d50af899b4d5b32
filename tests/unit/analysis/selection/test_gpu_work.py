"""The GPU work of a scope, whole and in parts."""

from __future__ import annotations

import polars as pl
import pytest
from tests.support.gpu_trace import GpuTrace, us

from stepscope.analysis.selection.gpu_work import gpu_work
from stepscope.analysis.selection.scope import Scope


@pytest.mark.parametrize("steps", [None, (0,), (1,)])
def test_parts_of_the_work_of_a_scope(steps: tuple[int, ...] | None) -> None:
    t = GpuTrace()
    for count in (2, 3):
        with t.step():
            for _ in range(count):
                t.op("aten::mm").launch("sgemm", us(100))
            t.op("nccl:all_reduce").launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", us(50))
            t.sync()
    work = gpu_work(t.load(), Scope(steps=steps))
    of_steps = (0, 1) if steps is None else steps
    products = sum((2, 3)[step] for step in of_steps)
    assert work.members["step"].unique().sort().to_list() == list(of_steps)
    assert work.members_of("compute").equals(work.members.filter(pl.col("kind") == "compute"))
    assert len(work.members_of("compute")) == products
    assert len(work.members_of("communication")) == len(of_steps)
    assert work.members_with("dur_ns", "op").equals(work.members.select("dur_ns", "op"))
