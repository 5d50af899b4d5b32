"""Launches that block because the queue of their stream is full.

The oracle is the same training with shorter kernels, simulated.
"""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.replay import host_alone_ns, is_host_bound, replay, unchanged
from stepscope.analysis.host.causes import HostCause

KERNELS = 2_000
HOST_NS = us(8)
"""What the host needs for a kernel: 4 µs in the operator, 4 in the call."""


def training(kernel_ns: int, *, depth: int = 1_022, python_ns: int = 0, skip: int = 0) -> GpuTrace:
    """Steps of many kernels, the first `skip` of which are not in the file."""
    t = GpuTrace(queue_depth=depth)
    recorded_from = t.now
    for number in range(5):
        if number == skip:
            recorded_from = t.now
        with t.step():
            t.python(python_ns)
            for _ in range(KERNELS):
                t.op("aten::mm", before=us(2), after=us(2)).launch("gemm", kernel_ns)
    t.events = [event for event in t.events if event["ts"] >= recorded_from]
    return t


def step_of(t: GpuTrace) -> float:
    """How long a step takes once the host is as far ahead as it gets."""
    ends = [max(work.end_ns for work in t.work if work.step == step) for step in (1, 4)]
    return (ends[1] - ends[0]) / 3


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("depth", "skip"), [(600, 0), (1_022, 2), (1_024, 0)])
@pytest.mark.parametrize("factor", [0.9, 0.1])
def test_waiting_for_room_is_no_work_of_the_host(depth, factor, skip):
    graph = build_step_graph(training(us(30), depth=depth, skip=skip).load())
    alone_ns = host_alone_ns(unchanged(graph)) / len(graph.steps)
    # Also where every launch of the window is blocked: each returns when it has had room so long.
    assert alone_ns == pytest.approx(KERNELS * HOST_NS, rel=0.02)
    changes = unchanged(graph).scale_work(graph.is_gpu, factor)
    again = replay(changes)
    real_ns = step_of(training(round(us(30) * factor), depth=depth))
    assert again.mean_step_ns == pytest.approx(real_ns, rel=0.02)
    assert is_host_bound(changes, again) == (30 * factor < 8)


@pytest.mark.parametrize("kernel_us", [18])
def test_launches_that_wait_for_less_than_a_call_usually_takes_are_blocked_too(kernel_us):
    """All calls take as long as a slow launch without a queue may: the queue tells them apart."""
    graph = build_step_graph(training(us(kernel_us), skip=2).load())
    again = replay(unchanged(graph).scale_work(graph.is_gpu, 0.1))
    real_ns = step_of(training(us(kernel_us) // 10))
    assert again.mean_step_ns == pytest.approx(real_ns, rel=0.02)


def test_python_hides_behind_no_more_work_than_the_queue_holds():
    """40 ms of Python hide behind 30 ms of queued kernels, and behind 15 ms of shorter ones."""
    graph = build_step_graph(training(us(30), python_ns=ms(40)).load())
    again = replay(unchanged(graph).scale_work(graph.is_gpu, 0.5))
    real_ns = step_of(training(us(15), python_ns=ms(40)))
    assert step_of(training(us(30), python_ns=ms(40))) > real_ns + ms(10)
    assert again.mean_step_ns == pytest.approx(real_ns, rel=0.02)


@pytest.mark.parametrize("cause", [HostCause.LAUNCH, HostCause.DISPATCH])
def test_a_host_that_the_queue_holds_back_gains_nothing_by_being_faster(cause):
    graph = build_step_graph(training(us(30)).load())
    assert replay(unchanged(graph).scale_host(graph.host.of(cause))).saving_ns == 0


@pytest.mark.parametrize("kernels_us", [(30,) * 150, (6,) * 120 + (300,) * 40])
def test_a_queue_full_of_work_that_is_not_in_the_file_is_no_work_of_the_host(kernels_us):
    """None of the recorded kernels starts before the host has launched all of them.

    Places of short kernels come as fast as the host needs them; those of long ones take its time.
    """
    t = GpuTrace(queue_depth=1_022)
    recorded_from = t.now
    for number in range(20):
        if number == 15:
            recorded_from = t.now
        with t.step():
            for kernel_us in kernels_us:
                t.op("aten::mm", before=us(2), after=us(2)).launch("gemm", us(kernel_us))
    recorded = [event for event in t.events if event["ts"] >= recorded_from]
    launched = {
        event["args"]["correlation"] for event in recorded if event.get("cat") == "cuda_runtime"
    }
    t.events = [
        event
        for event in recorded
        if event.get("cat") != "kernel" or event["args"]["correlation"] in launched
    ]
    graph = build_step_graph(t.load())
    alone_ns = host_alone_ns(unchanged(graph)) / len(graph.steps)
    assert alone_ns == pytest.approx(len(kernels_us) * HOST_NS, rel=0.15)
