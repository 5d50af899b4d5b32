"""Batches come at the pace of the loader's workers, whatever the host does.

The oracle is the same training with the change, simulated with its workers.
"""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.host.causes import HostCause

STEPS = 17


def training(
    load_ns: int,
    *,
    workers: int = 2,
    kernel_ns: int = us(200),
    python_ns: int = us(100),
    reads_loss: bool = True,
) -> GpuTrace:
    """Steps of 50 kernels that wait for a batch; each worker loads one after another.

    Workers begin when the training does, have two batches each in advance at most, and give their
    batches in turn.
    """
    t = GpuTrace()
    origin_ns = t.now
    ready: list[int] = []
    taken: list[int] = []
    for number in range(STEPS):
        began = ready[number - workers] if number >= workers else origin_ns
        if number >= 2 * workers:
            began = max(began, taken[number - 2 * workers])
        ready.append(began + load_ns)
        with t.step():
            t.data_wait(max(us(50), ready[number] - t.now), workers=True)
            taken.append(t.now)
            for _ in range(50):
                t.op("aten::mm", before=us(20)).python(python_ns).launch("gemm", kernel_ns)
            if reads_loss:
                t.item()
    return t


def step_of(t: GpuTrace) -> float:
    """How long a step takes, over the second half of the training."""
    ends = [max(w.end_ns for w in t.work if w.step == step) for step in (STEPS // 2, STEPS - 1)]
    return (ends[1] - ends[0]) / (STEPS - 1 - STEPS // 2)


CHANGES = {
    "host": lambda graph: unchanged(graph).scale_host(graph.host.of(HostCause.PYTHON)),
    "python": lambda graph: unchanged(graph).scale_work(graph.is_gpu, 0.5),
    "sync": lambda graph: unchanged(graph).drop_edges(graph.edge_kind == EdgeKind.SYNC),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("change", CHANGES)
def test_what_the_loader_limits_gains_nothing_by_other_changes(change, workers):
    recorded = training(ms(30) * workers, workers=workers)
    graph = build_step_graph(recorded.load())
    assert step_of(recorded) == pytest.approx(ms(30), rel=0.05)
    assert replay(CHANGES[change](graph)).saving_ns < 0.01 * ms(30)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_batches_in_time_save_what_the_step_waits_for_them(workers):
    recorded = training(ms(30) * workers, workers=workers)
    graph = build_step_graph(recorded.load(), tuple(range(1, STEPS)))  # whole rounds of the workers
    waits = graph.host.of(HostCause.INPUT, lanes=(graph.main_lane,))
    again = replay(unchanged(graph).scale_host(waits, 0.0, lanes=(graph.main_lane,)))
    real_ns = step_of(recorded) - step_of(training(us(10), workers=workers))
    assert again.saving_ns == pytest.approx(real_ns, rel=0.03)


def test_a_loader_that_keeps_up_limits_nothing():
    recorded = training(ms(5), workers=2)
    graph = build_step_graph(recorded.load())
    assert not (graph.edge_kind == EdgeKind.ARRIVAL).any()
    half = replay(unchanged(graph).scale_work(graph.is_gpu, 0.5))
    real_ns = step_of(recorded) - step_of(training(ms(5), workers=2, kernel_ns=us(100)))
    assert half.saving_ns == pytest.approx(real_ns, rel=0.05)


def test_a_thread_that_loads_its_batches_itself_takes_as_long_whenever_it_begins():
    t = GpuTrace()
    for _ in range(4):
        with t.step():
            t.data_wait(ms(20))
            for _ in range(50):
                t.op("aten::mm", before=us(20)).launch("gemm", us(200))
            t.item()
    graph = build_step_graph(t.load())
    half = replay(unchanged(graph).scale_work(graph.is_gpu, 0.5))
    assert half.saving_ns == pytest.approx(ms(5), rel=0.05)
