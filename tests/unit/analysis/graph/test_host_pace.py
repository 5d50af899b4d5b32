"""A replay never makes a step shorter than what the host alone needs, whoever is ahead at first.

The oracle is the same training with the shorter GPU work, simulated.
"""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.replay import host_alone_ns, is_host_bound, replay, unchanged


def training(
    kernel_ns: int, *, steps: int, backlog_ns: int, sync_first: bool, python_ns: int = us(280)
) -> GpuTrace:
    """Steps of 100 kernels, each after some Python; the GPU still has earlier work at the start."""
    t = GpuTrace()
    t.launch("earlier", backlog_ns)
    for _ in range(steps):
        with t.step():
            if sync_first:
                t.sync()
            for _ in range(100):
                t.op("aten::mm").python(python_ns).launch("gemm", kernel_ns)
    return t


def predicted(t: GpuTrace, factor: float):
    graph = build_step_graph(t.load())
    changes = unchanged(graph).scale_work(graph.is_gpu, factor)
    again = replay(changes)
    return graph, again, is_host_bound(changes, again)


@pytest.mark.parametrize("factor", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_host_that_first_waits_for_earlier_work_sets_the_pace_without_that_wait(steps, factor):
    """One step of 36 ms on the GPU and 29 ms of host work, after 14 ms for earlier work."""
    recorded = training(us(360), steps=steps, backlog_ns=ms(14), sync_first=True)
    graph, again, _ = predicted(recorded, factor)
    real = training(round(us(360) * factor), steps=8, backlog_ns=us(1), sync_first=True)
    assert again.mean_step_ns == pytest.approx(build_step_graph(real.load()).mean_step_ns, rel=0.04)
    assert graph.host_time_ns > graph.total_ns or steps > 1
    assert again.mean_step_ns >= host_alone_ns(unchanged(graph)) / steps - 1


@pytest.mark.parametrize("steps", [2, 4])
def test_a_call_that_did_not_wait_where_the_window_begins_waits_in_the_steady_state(steps):
    """The recorder let the GPU finish first; later, each step begins with waiting for the last."""

    def waiting(*, drained: bool, waits: bool = True, steps: int = steps) -> GpuTrace:
        t = GpuTrace()
        t.launch("earlier", ms(5))
        if drained:
            t.sync()
        for _ in range(steps):
            with t.step():
                t.python(ms(3))
                if waits:
                    t.sync()
                t.python(ms(4))
                for _ in range(10):
                    t.op("aten::mm").launch("gemm", ms(1))
        return t

    def later_step_ns(*, waits: bool) -> int:
        ends = build_step_graph(waiting(drained=True, waits=waits, steps=8).load()).step_ends_ns
        return int(ends[-1] - ends[-2])

    now_ns, free_ns = later_step_ns(waits=True), later_step_ns(waits=False)
    graph = build_step_graph(waiting(drained=True).load())
    sync = graph.call[graph.edge_kind == EdgeKind.SYNC]
    without = replay(unchanged(graph).drop_waits_of_calls(sync))
    assert replay(unchanged(graph)).saving_ns == 0
    assert without.saving_ns == pytest.approx(now_ns - free_ns, rel=0.03)
    shorter = replay(unchanged(graph).scale_work(graph.is_gpu, 0.5))
    assert shorter.saving_ns == pytest.approx(ms(5), rel=0.02)


@pytest.mark.parametrize("factor", [0.9, 0.5, 0.1])
def test_a_host_that_is_ahead_does_not_stay_ahead(factor):
    """The GPU has 60 ms of earlier work, and the host launches 4 steps of 29 ms meanwhile."""
    graph, again, is_bound = predicted(
        training(us(360), steps=4, backlog_ns=ms(60), sync_first=False), factor
    )
    real = training(round(us(360) * factor), steps=8, backlog_ns=us(1), sync_first=False)
    assert again.mean_step_ns == pytest.approx(build_step_graph(real.load()).mean_step_ns, rel=0.04)
    assert is_bound == (factor < 0.8)
    assert again.mean_step_ns >= min(graph.mean_step_ns, host_alone_ns(unchanged(graph)) // 4)


def test_a_step_that_was_measured_shorter_than_the_host_needs_stays_as_it_is():
    """The GPU catches up with a host that was ahead: 20 ms a step, where the host needs 29 ms."""
    recorded = training(us(200), steps=2, backlog_ns=ms(60), sync_first=False)
    graph, again, is_bound = predicted(recorded, 0.0)
    assert graph.mean_step_ns < host_alone_ns(unchanged(graph)) / 2
    assert again.saving_ns == 0
    assert is_bound
