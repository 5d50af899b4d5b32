"""Waits for batches: per step, by source, with what they cost the GPU."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, us

from stepscope.analysis.idle import idle_causes
from stepscope.analysis.input_pipeline import input_pipeline
from stepscope.analysis.selection.scope import Scope


def _training(wait_us: float, *, workers: bool = True, kernel_us: float = 100) -> GpuTrace:
    t = GpuTrace()
    for _ in range(4):
        with t.step():
            t.data_wait(us(wait_us), workers=workers)
            t.op("aten::mm").launch("sgemm", us(kernel_us))
            t.sync()
    return t


def test_waits_per_step_and_in_all() -> None:
    t = _training(900, workers=False)
    trace = t.load()
    answer = input_pipeline(trace)
    assert answer.waits == 4
    assert answer.wait_ns == 4 * us(900)
    assert answer.steps["wait_ns"].to_list() == [us(900)] * 4
    assert answer.steps["wall_ns"].sum() == t.now - t.start_ns
    assert answer.wait_share == pytest.approx(4 * us(900) / (t.now - t.start_ns))
    assert answer.runs_in_process is True
    assert answer.gpu_idle_ns == idle_causes(trace).of("input") == 3 * us(900)
    assert input_pipeline(trace, Scope(steps=(1, 2))).gpu_idle_ns == 2 * us(900)
    source = answer.sources.row(0, named=True)
    assert (source["count"], source["mean_ns"], source["max_ns"]) == (4, us(900), us(900))


def test_a_wait_beside_a_busy_gpu_costs_nothing() -> None:
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            t.op("aten::mm").launch("sgemm", us(2000))
            t.data_wait(us(900), workers=True)
    answer = input_pipeline(t.load())
    assert answer.wait_ns == 3 * us(900)
    assert answer.gpu_idle_ns == 0
    assert answer.runs_in_process is False


def test_nested_and_foreign_waits_count_once_or_not_at_all() -> None:
    t = GpuTrace()
    with t.step():
        with t.annotate("enumerate(DataPipe)#Batcher"):
            t.python(us(10))
            t.data_wait(us(50))
            t.op("aten::stack").python(us(20))
        with t.beside(77, "pin_memory_0"):
            t.data_wait(us(500))
        t.launch("k", us(1))
    answer = input_pipeline(t.load())
    assert answer.waits == 1
    assert answer.wait_ns == us(10 + 50 + 20) + us(3)  # an operator's beginning and end
    assert answer.scope.excluded == {"waits of other threads": 1}
    assert "aten::stack" in answer.inside["name"].to_list()
    assert answer.workers["thread_name"].to_list() == ["pin_memory_0"]


def test_old_traces_write_the_wait_as_an_operator() -> None:
    t = GpuTrace()
    with t.step():
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        t.op(name, category="Operator", before=0, after=0).python(us(300))
        t.launch("k", us(1))
    answer = input_pipeline(t.load())
    assert answer.wait_ns == us(300)
    assert answer.runs_in_process is True


def test_without_waits_and_without_steps() -> None:
    t = GpuTrace(annotate_steps=False)
    with t.step():
        t.launch("k", us(1))
    answer = input_pipeline(t.load())
    assert answer.waits == 0
    assert answer.wait_share is None
    assert answer.runs_in_process is None
    assert any("no wait" in note for note in answer.notes)
    t = GpuTrace(annotate_steps=False)
    with t.step():
        t.data_wait(us(70))
    assert input_pipeline(t.load()).wait_ns == us(70)
