"""Single collectives: those of a scope are those of the whole file that are in it."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from tests.support.gpu_trace import COMM_STREAM, GpuTrace, ms

from stepscope.analysis.calls.collectives import COLLECTIVES, read_collectives
from stepscope.analysis.selection.gpu_work import gpu_work, recorded_work
from stepscope.analysis.selection.scope import Scope


def training(steps=3):
    """Steps with a collective that tells its size, and one whose operator tells its shapes."""
    t = GpuTrace(world_size=4)
    for step in range(steps):
        with t.step():
            t.op("aten::mm").launch("gemm", ms(1))
            t.collective("all_reduce", (step + 1) << 20, ms(2))
            with t.op("nccl:all_gather", category="user_annotation", shapes=[[8]], types=["float"]):
                t.launch("ncclKernel_SendRecv", ms(1), stream=COMM_STREAM)
    return t.load()


@pytest.mark.parametrize("whole_first", [False, True])
@pytest.mark.parametrize("steps", [(0,), (1, 2), (0, 1, 2)])
def test_collectives_of_steps_are_those_of_the_file(steps, whole_first):
    trace = training()
    if whole_first:
        read_collectives(trace, gpu_work(trace).members)
    found = read_collectives(trace, gpu_work(trace, Scope(steps=steps)).members)
    whole = read_collectives(training(), gpu_work(training()).members)
    assert_frame_equal(found, whole.filter(pl.col("step").is_in(steps)))
    assert found["message_bytes"].to_list() == [
        size for step in steps for size in ((step + 1) << 20, 8 * 4 * 4)
    ]


def test_only_kernels_that_are_asked_about_share_a_message():
    t = GpuTrace(world_size=4)
    with (
        t.step(),
        t.op("nccl:all_reduce", category="user_annotation", shapes=[[8]], types=["float"]),
    ):
        t.launch("ncclKernel_AllReduce", ms(1), stream=COMM_STREAM)
        t.launch("ncclKernel_AllReduce", ms(1), stream=COMM_STREAM)
    trace = t.load()
    work = recorded_work(trace)
    assert read_collectives(trace, work)["message_bytes"].to_list() == [None, None]
    assert read_collectives(trace, work[:1])["message_bytes"].to_list() == [32]


def test_no_collectives_have_the_same_columns():
    t = GpuTrace()
    with t.step():
        t.op("aten::mm").launch("gemm", ms(1))
    trace = t.load()
    found = read_collectives(trace, recorded_work(trace))
    assert found.is_empty()
    assert dict(found.schema) == COLLECTIVES
