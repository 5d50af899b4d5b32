"""Savings hold in the steady state, however the window began and where it ends.

The oracle is a long training without the cause, simulated: the time between the ends of its steps.
"""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.kinds import EdgeKind
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.host.causes import HostCause

LEAD_IN = 4
"""Steps before the recorded ones, in which the host gets ahead of the device."""


def training(
    kernel_ns: int,
    *,
    input_ns: int = 0,
    reads_loss: bool = False,
    starts_idle: bool = False,
    steps: int = 3,
) -> GpuTrace:
    """Steps of 50 kernels after a wait for input, of which the last few are in the file."""
    t = GpuTrace(first_step=0)
    for number in range(LEAD_IN + steps):
        if number == LEAD_IN:
            if starts_idle:
                t.sync()
            recorded_from = t.now
        with t.step():
            if input_ns:
                t.data_wait(input_ns)
            for _ in range(50):
                t.op("aten::mm", before=us(20)).launch("gemm", kernel_ns)
            if reads_loss:
                t.item()
    t.sync()
    t.events = [event for event in t.events if event["ts"] >= recorded_from]
    return t


def step_of(t: GpuTrace) -> float:
    """How long a step takes once the host is as far ahead as it gets."""
    ends: dict[int, int] = {}
    for work in t.work:
        if work.step is not None:
            ends[work.step] = max(ends.get(work.step, 0), work.end_ns)
    return (ends[max(ends)] - ends[LEAD_IN - 1]) / (max(ends) - LEAD_IN + 1)


@pytest.mark.parametrize("starts_idle", [False, True])
@pytest.mark.parametrize("steps", [2, 3, 5])
def test_a_wait_at_the_end_of_each_step_costs_what_it_costs_every_step(steps, starts_idle):
    """The wait at the end of the last step hides work of a step that is not recorded."""
    about = {"input_ns": ms(4), "steps": steps}
    recorded = training(us(200), reads_loss=True, starts_idle=starts_idle, **about)
    graph = build_step_graph(recorded.load())
    free = replay(unchanged(graph).drop_edges(graph.edge_kind == EdgeKind.SYNC))
    real = step_of(training(us(200), reads_loss=True, **about)) - step_of(
        training(us(200), **about)
    )
    assert real > ms(3)
    assert free.saving_ns == pytest.approx(real, rel=0.02)


@pytest.mark.parametrize("steps", [2, 3])
def test_a_wait_that_only_the_first_step_of_the_window_shows_saves_nothing(steps):
    """The recorder let the device run dry; later the host waits while the device works."""
    recorded = training(us(200), input_ns=ms(4), starts_idle=True, steps=steps)
    graph = build_step_graph(recorded.load())
    again = replay(unchanged(graph).scale_host(graph.host.of(HostCause.INPUT)))
    assert graph.total_ns - again.total_ns > ms(3)  # the window itself would be shorter
    assert again.saving_ns < us(100)
    assert step_of(training(us(200), input_ns=ms(4), steps=steps)) == pytest.approx(
        step_of(training(us(200), steps=steps)), rel=0.01
    )


def test_what_every_step_waits_for_is_saved_however_the_window_begins():
    for starts_idle in (False, True):
        recorded = training(us(20), input_ns=ms(4), starts_idle=starts_idle)
        graph = build_step_graph(recorded.load())
        again = replay(unchanged(graph).scale_host(graph.host.of(HostCause.INPUT)))
        real = step_of(training(us(20), input_ns=ms(4))) - step_of(training(us(20)))
        assert again.saving_ns == pytest.approx(real, rel=0.02)


def test_one_step_is_taken_to_come_again_and_again():
    about = {"input_ns": ms(4), "steps": 1}
    graph = build_step_graph(training(us(200), reads_loss=True, **about).load())
    free = replay(unchanged(graph).drop_edges(graph.edge_kind == EdgeKind.SYNC))
    real = step_of(training(us(200), reads_loss=True, **about)) - step_of(
        training(us(200), **about)
    )
    assert free.saving_ns == pytest.approx(real, rel=0.02)


def test_what_a_recorder_waits_for_before_one_step_is_no_wait_of_each_step():
    t = GpuTrace()
    with t.step():
        t.sync()
        for _ in range(20):
            t.op("aten::mm").launch("gemm", us(300))
    graph = build_step_graph(t.load())
    assert not (graph.edge_kind == EdgeKind.SYNC).any()
