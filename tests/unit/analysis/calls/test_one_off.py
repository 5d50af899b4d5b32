"""Host calls that happen once: found among their like, never where they recur or wait."""

from __future__ import annotations

import contextlib

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.analysis.calls.one_off import (
    CONTEXT,
    CREATION,
    FIRST_RUN,
    GROWTH,
    MODULES,
    SEARCH,
    one_off_calls,
)
from stepscope.analysis.host.steady_steps import steady_steps
from stepscope.analysis.idle import idle_times

KERNEL = "vectorized_elementwise_kernel"


def trace_of(body, *, steps=4, vendor="nvidia", annotate=True):
    """Steps of twenty kernels that keep the GPU busy, and of what `body` adds to each."""
    t = GpuTrace(vendor=vendor, annotate_steps=annotate)
    for step in range(steps):
        with t.step() if annotate else contextlib.nullcontext():
            for number in range(20):
                body(t, step, number)
                t.op("aten::mul").launch(KERNEL, us(200))
            t.sync()
    return t


def found(t, **where):
    return one_off_calls(t.load(), **where)


@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("annotate", [True, False])
def test_a_slow_launch_is_set_apart_by_what_it_takes_beyond_its_like(vendor, steps, annotate):
    def body(t, step, number):
        if (step, number) == (0, 9):
            t.op("aten::add_").launch(KERNEL, us(200), call_ns=ms(300))

    rows = found(trace_of(body, steps=steps, vendor=vendor, annotate=annotate))
    assert rows["kind"].to_list() == [MODULES]
    assert KERNEL in rows["what"][0]
    assert ("hip" in rows["what"][0]) == (vendor == "amd")
    assert rows["end_ns"][0] - rows["start_ns"][0] == ms(300)
    assert rows["usual_ns"][0] == 4_000


def test_each_first_launch_of_a_kernel_may_be_slow():
    def body(t, step, number):
        first = step == 0
        if number < 12:
            t.op("aten::add").launch(f"kernel_{number}", us(50), call_ns=ms(20) if first else None)

    rows = found(trace_of(body))
    assert len(rows) == 12
    assert set(rows["kind"]) == {MODULES}


@pytest.mark.parametrize("name", ["cudaLaunchKernel", "cudaMalloc", "cudaStreamCreate"])
def test_what_is_slow_in_every_step_recurs(name):
    def body(t, step, number):
        if number == 9:
            t.sync()
            t.call(name, ms(5))

    assert found(trace_of(body)).is_empty()


def test_a_launch_that_waits_while_the_gpu_works_is_no_one_off():
    """Back-pressure: the call lasts as long as the work that fills the queue."""
    t = GpuTrace()
    for step in range(3):
        with t.step():
            for _ in range(20):
                t.op("aten::mm").launch("gemm", ms(1))
            if step == 1:
                t.op("aten::mul").launch(KERNEL, us(10), call_ns=ms(15))
            t.sync()
    assert found(t).is_empty()


def test_waits_for_the_device_are_no_one_offs():
    def body(t, step, number):
        if (step, number) == (1, 5):
            t.call("cudaDeviceSynchronize", ms(80))
            t.call("cudaMemcpyAsync", ms(80))

    assert found(trace_of(body)).is_empty()


def test_work_before_the_recording_may_be_what_a_first_call_waits_for():
    t = GpuTrace()
    with t.step():
        t.call("cudaFree", ms(300))
        t.op("aten::mul").launch(KERNEL, us(10))
    assert len(found(t)) == 1
    (kernel,) = (event for event in t.events if event["cat"] == "kernel")
    kernel["ts"] += ms(50)  # though nothing was recorded that it could have waited for
    assert found(t).is_empty()


@pytest.mark.parametrize("annotate", [True, False])
def test_the_context_is_created_before_any_gpu_work(annotate):
    t = GpuTrace(annotate_steps=annotate)
    with t.step() if annotate else contextlib.nullcontext():
        with t.op("aten::empty"):
            t.call("cudaFree", ms(6000))
        t.call("cudaStreamCreateWithPriority", ms(12))
        for _ in range(40):
            t.op("aten::mul").launch(KERNEL, us(200))
        t.sync()
    rows = found(t)
    assert rows["kind"].to_list() == [CONTEXT, CREATION]


def test_allocations_of_the_first_steps_are_growth_and_of_every_step_are_not():
    def growing(t, step, number):
        if step < 2 and number < 3:
            t.malloc(1 << 20, us(400))

    def churning(t, step, number):
        if number < 3:
            t.malloc(1 << 20, us(400))

    rows = found(trace_of(growing, steps=6))
    assert set(rows["kind"]) == {GROWTH}
    assert len(rows) == 6
    assert found(trace_of(churning, steps=6)).is_empty()


def test_a_convolution_that_tries_algorithms_is_a_search():
    def body(t, step, number):
        if number == 3:
            with t.op("aten::cudnn_convolution"):
                for trial in range(12 if step == 0 else 1):
                    t.launch(f"cudnn_algorithm_{trial}", us(300))
                    if step == 0:
                        t.sync()

    rows = found(trace_of(body))
    assert rows["kind"].to_list() == [SEARCH]
    assert rows["end_ns"][0] - rows["start_ns"][0] > ms(3)


def test_the_first_run_of_an_operator_is_its_own_time():
    def body(t, step, number):
        before = ms(120) if (step, number) == (0, 0) else us(5)
        t.op("aten::addmm", before=before).launch("gemm", us(100))

    rows = found(trace_of(body))
    assert rows["kind"].to_list() == [FIRST_RUN]
    assert rows["end_ns"][0] - rows["start_ns"][0] == ms(120)


def test_a_step_and_its_idle_time_are_without_the_one_off():
    """The third of five steps has it: less than a stall would take."""

    def body(t, step, number):
        if (step, number) == (2, 9):
            t.op("aten::add_").launch("other_kernel", us(200), call_ns=ms(6))

    slow, healthy = trace_of(body, steps=5).load(), trace_of(lambda *_: None, steps=5).load()
    # The GPU has work for up to 2 ms when the call begins.
    assert ms(4) <= idle_times(slow).of("one_off") <= ms(6)
    assert steady_steps(slow).step_ns == pytest.approx(steady_steps(healthy).step_ns, rel=0.02)
    assert steady_steps(healthy).one_off_ns == 0


def test_only_those_of_a_window_and_of_some_threads():
    def body(t, step, number):
        if (step, number) == (0, 9):
            t.op("aten::add_").launch("other", us(200), call_ns=ms(30))

    t = trace_of(body)
    (row,) = found(t).iter_rows(named=True)
    assert len(found(t, lanes=(row["lane_id"],))) == 1
    assert found(t, lanes=(row["lane_id"] + 1,)).is_empty()
    assert found(t, window=(row["end_ns"], row["end_ns"] + 1)).is_empty()
    assert len(found(t, window=(row["end_ns"] - 1, row["end_ns"]))) == 1
