"""Collectives of gloo: in communication, timeline and stragglers, as in the report."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.rank_jobs import compare_traces

from stepscope.analysis.communication import analyse_communication
from stepscope.analysis.ranks.clocks import Clock
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import break_down, timeline

GLOO_THREAD = 2000
STEPS = 3


def gloo_training(rank: int = 0, late_ns: int = 0, wait_ns: int = ms(6)) -> GpuTrace:
    """Each step: 4 ms of forward, an all-reduce on gloo's thread, 1 ms of it beside a product."""
    t = GpuTrace(rank=rank, world_size=2, device_name=None)
    for _ in range(STEPS):
        with t.step():
            t.op("aten::linear").python(ms(4) + late_ns)
            t.op("c10d::allreduce_", shapes=[[[1000]]]).python(us(50))
            with (
                t.beside(GLOO_THREAD, "pt_gloo_runloop"),
                t.op(
                    "gloo:all_reduce",
                    category="user_annotation",
                    shapes=[[1000]],
                    types=["float"],
                    before=0,
                    after=0,
                ),
            ):
                t.python(ms(1) + wait_ns - late_ns)
            t.op("aten::mm").python(ms(1))
            t.python(wait_ns - late_ns)
            t.op("aten::add_").python(us(300))
    return t


def test_gloos_collectives_are_communication_with_their_size_and_exposed_time():
    found = analyse_communication(gloo_training().load())
    rows = found.collectives
    assert rows["kind"].to_list() == ["all_reduce"] * STEPS
    assert rows["message_bytes"].to_list() == [4000] * STEPS
    assert rows["group_size"].to_list() == [2] * STEPS
    assert rows["dur_ns"].to_list() == [ms(7)] * STEPS
    (device,) = found.devices.rows(named=True)
    assert device["device"] is None
    assert device["communication_ns"] == STEPS * ms(7)
    assert device["exposed_ns"] + device["overlapped_ns"] == STEPS * ms(7)
    # The thread waits from the end of its operator, 3 µs after 1 ms, to the end of the collective.
    assert device["exposed_ns"] == pytest.approx(STEPS * ms(6), rel=0.01)
    assert rows["exposed_ns"].sum() == device["exposed_ns"]
    assert any("CPU" in note for note in found.notes)


def test_a_scope_selects_collectives_by_step():
    one = analyse_communication(gloo_training().load(), Scope(steps=(1,)))
    assert one.collectives["step"].to_list() == [1]


def test_the_timeline_of_a_trace_without_gpu_work_divides_the_training_thread_as_the_report():
    trace = gloo_training().load()
    table = timeline(trace).main_thread
    whole = break_down(trace).partition
    assert table["communication_ns"].sum() == whole.of("communication") > 0
    parts = [name for name in table.columns if name not in ("step", "wall_ns")]
    assert (table.select(parts).sum_horizontal() == table["wall_ns"]).all()


def test_the_late_rank_is_found_by_gloos_collectives():
    ranks = [(0, gloo_training(0).load()), (1, gloo_training(1, late_ns=ms(5)).load())]
    found = compare_traces(ranks, clock=Clock.RECORDED)
    assert found.straggler == 1
    assert len(found.sets) == STEPS
    waits = dict(found.ranks.select("rank", "mean_wait_ns").iter_rows())
    assert waits[1] == 0
    assert waits[0] == ms(5)


def test_fills_hide_communication_in_both_answers():
    t = GpuTrace(world_size=2)
    with t.step():
        t.launch("sgemm", us(100))
        t.collective("all_reduce", 1 << 20, us(400), waits_for_compute=False)
        t.fill(1 << 20, us(150))
    trace = t.load()
    line = timeline(trace)
    (device,) = analyse_communication(trace).devices.rows(named=True)
    assert device["exposed_ns"] == line.exposed_comm_ns
    assert device["communication_ns"] == line.total_comm_ns
    assert device["overlapped_ns"] == line.total_comm_ns - line.exposed_comm_ns
