"""Batches come at the pace of the loader's workers, whatever the host does.

The oracle is the same training with the change, simulated with its workers.
"""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.graph.step_graph import ORIGIN
from stepscope.analysis.host.causes import HostCause

STEPS = 17


def training(
    load_ns: int,
    *,
    workers: int = 2,
    kernel_ns: int = us(200),
    python_ns: int = us(100),
    reads_loss: bool = True,
    kernels: int = 50,
    ahead_ns: int = 0,
    apart_ns: int = 0,
) -> GpuTrace:
    """Steps of some kernels that wait for a batch; each worker loads one after another.

    Workers begin `ahead_ns` before the training does and `apart_ns` one after the other, have two
    batches each in advance at most, and give their batches in turn.
    """
    t = GpuTrace()
    origin_ns = t.now - ahead_ns
    ready: list[int] = []
    taken: list[int] = []
    for number in range(STEPS):
        begins_ns = origin_ns + number * apart_ns
        began = ready[number - workers] if number >= workers else begins_ns
        if number >= 2 * workers:
            began = max(began, taken[number - 2 * workers])
        ready.append(began + load_ns)
        with t.step():
            t.data_wait(max(us(30), ready[number] - t.now), workers=True)
            taken.append(t.now)
            for _ in range(kernels):
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


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("change", CHANGES)
def test_short_steps_that_mostly_wait_wait_for_their_batch(change, workers):
    recorded = training(us(1200) * workers, workers=workers, kernels=2, kernel_ns=us(100))
    graph = build_step_graph(recorded.load())
    assert step_of(recorded) == pytest.approx(us(1200), rel=0.05)
    assert replay(CHANGES[change](graph)).saving_ns < 0.01 * us(1200)


@pytest.mark.parametrize(("workers", "apart_ns"), [(3, ms(20)), (4, ms(20)), (4, ms(25))])
def test_the_pace_is_that_of_workers_where_the_window_begins_with_batches_in_store(
    workers, apart_ns
):
    ahead_ns = ms(30) * workers + apart_ns
    recorded = training(ms(30) * workers, workers=workers, ahead_ns=ahead_ns, apart_ns=apart_ns)
    graph = build_step_graph(recorded.load(), tuple(range(3 * workers)))
    assert graph.mean_step_ns < 0.97 * ms(30)  # two batches were in store
    between = (graph.edge_kind == EdgeKind.ARRIVAL) & (graph.source != ORIGIN)
    pace_ns = graph.delay_ns[between].sum() / (3 * workers)
    assert pace_ns == pytest.approx(ms(30), rel=0.01)
    assert graph.replayed_step_ns == round(pace_ns)


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
