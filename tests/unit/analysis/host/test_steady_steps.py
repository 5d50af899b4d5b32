"""The steady steps of a trace, and that every answer states the same step."""

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.tables import TableBuilder

from stepscope.analysis.critical_path import critical_path
from stepscope.analysis.host.steady_steps import (
    ClassifiedStep,
    SteadySteps,
    StepState,
    steady_steps,
)
from stepscope.analysis.steps import step_table
from stepscope.trace.model import Trace


def test_steps_that_count_without_gpu_work_last_as_long_as_on_the_host():
    """One step alone works on the GPU, and is a stall: every answer states the same step."""
    build = TableBuilder()
    for number in range(5):
        start = number * ms(10)
        build.step(number, start, ms(10))
        build.host("aten::mm", start + ms(1), ms(5))
    build.launch(ms(41), us(5), ms(42), ms(3))
    trace = Trace.from_tables(build.build(), "t")
    steady = steady_steps(trace)
    assert steady.steps == (0, 1, 2, 3)
    assert (steady.step_ns, steady.is_of_devices) == (ms(10), False)
    assert step_table(trace).step_ns == critical_path(trace).step_ns == steady.step_ns


def test_a_start_up_beside_longer_waits_is_compared_beside_them():
    """A later step waits longer for its input: the first is slow by what it does itself."""
    steps = tuple(
        ClassifiedStep(number, state, ms(dur_ms), ms(input_ms))
        for number, state, dur_ms, input_ms in (
            (7, StepState.START_UP, 107, 1),
            (8, StepState.COMPLETE, 230, 190),
            (9, StepState.COMPLETE, 22, 2),
        )
    )
    steady = SteadySteps((8, 9), ms(126), ms(126), False, 0, steps)
    assert steady.notes[0] == (
        "step 7 took 107 ms, 106 ms beside its input, 3.53 times the others (start-up): not part "
        "of the steady step"
    )


def test_waits_that_the_device_works_through_do_not_hide_a_slow_first_step():
    """The loader delivers every 130 ms, the device needs 140: only the first batch holds it up."""
    t = GpuTrace()
    began = t.now
    for number in range(12):
        with t.step():
            t.data_wait(max(us(50), began + ms(130) * (number + 1) - t.now), workers=True)
            t.op("aten::copy_").copy("HtoD", 80_000_000, ms(60), pinned=False)
            for _ in range(8):
                t.op("aten::conv2d").launch("conv", ms(10))
    steady = steady_steps(t.load())
    waits = [one.input_ns for one in steady.classified]
    assert waits[1] > ms(60)
    assert waits[8] < ms(1)
    assert steady.steps == tuple(range(1, 12))
    assert steady.step_ns == pytest.approx(ms(140), rel=0.01)
    assert "(start-up)" in steady.notes[0]


def test_a_first_step_that_only_waits_is_as_the_others_beside_that():
    steps = tuple(
        ClassifiedStep(number, state, ms(dur_ms), ms(input_ms))
        for number, state, dur_ms, input_ms in (
            (0, StepState.START_UP, 380, 300),
            (1, StepState.COMPLETE, 300, 220),
            (2, StepState.COMPLETE, 300, 220),
        )
    )
    steady = SteadySteps((1, 2), ms(300), ms(300), True, 0, steps)
    assert steady.notes[0] == (
        "step 0 took 380 ms, 80.0 ms beside its input, as the others (start-up): not part of the "
        "steady step"
    )
