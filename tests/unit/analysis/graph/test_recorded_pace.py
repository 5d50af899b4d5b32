"""Replays have the pace of unrecorded steps, which recording does not slow down.

The oracle is the same training without recording, simulated with and without each cause.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.simulator import simulate, steady_step_ns, without_input_wait, write_run
from tests.support.simulator.program import (
    Collector,
    Copy,
    Kernels,
    Loader,
    Op,
    Program,
    Python,
    Read,
    Recording,
    Synchronize,
)

import stepscope
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.host.causes import HostCause
from stepscope.analysis.record.pace import RecordedPace, recorded_pace
from stepscope.analysis.record.summary import summarise_steps
from stepscope.run.step_record import read_steps

STEPS = 6


def training(
    kernel_ns: int, *, factor: float = 1.0, python_ns: int = us(20), wait_ns: int = 0
) -> GpuTrace:
    """Steps of 100 kernels; recording makes all that the host does `factor` times as long."""
    t = GpuTrace(call_ns=round(us(4) * factor))
    for _ in range(STEPS):
        with t.step():
            if wait_ns:
                t.data_wait(wait_ns, workers=True)
            for _ in range(100):
                before = round(us(4) * factor)
                with t.op("aten::mm", before=before, after=0) as op:
                    op.launch("gemm", kernel_ns)
                t.python(round(python_ns * factor))
    return t


def step_of(t: GpuTrace) -> float:
    """How long a step takes once the host is as far ahead as it gets."""
    ends = [max(work.end_ns for work in t.work if work.step == step) for step in (1, STEPS - 1)]
    return (ends[1] - ends[0]) / (STEPS - 2)


def host_step() -> int:
    """What the host needs for a step without recording, if it never waits for the GPU."""
    return round(step_of(training(us(1))))


@pytest.mark.parametrize("factor", [1.3, 2.0])
@pytest.mark.parametrize("kernel_ns", [us(10), us(26), us(34)])
def test_savings_are_those_of_unrecorded_steps(kernel_ns, factor):
    """Recording makes the host need more for a kernel than the longest kernel takes."""
    usual = step_of(training(kernel_ns))
    pace = RecordedPace(round(usual), round(usual), 0, round(usual))
    recorded = training(kernel_ns, factor=factor).load()
    graph = build_step_graph(recorded, pace=pace)
    assert graph.has_recorded_pace
    assert graph.replayed_step_ns == pytest.approx(usual, rel=0.02)
    half = replay(unchanged(graph).scale_work(graph.is_gpu, 0.5))
    faster_ns = usual - step_of(training(kernel_ns // 2))
    # Where the GPU limits unrecorded steps, nothing shows how much faster the host could be.
    assert half.saving_ns <= faster_ns + 0.02 * usual
    quick = replay(unchanged(graph).scale_host(graph.host.of(HostCause.DISPATCH, HostCause.LAUNCH)))
    less_ns = usual - step_of(training(kernel_ns, python_ns=us(12)))
    assert quick.saving_ns == pytest.approx(less_ns, abs=0.03 * usual)


def test_a_record_of_a_host_that_ran_ahead_has_the_pace_of_the_host():
    """Unrecorded steps were the host's alone; the GPU needs longer for one."""
    host_ns = host_step()
    recorded = training(us(40), factor=2.0).load()
    graph = build_step_graph(recorded, pace=RecordedPace(host_ns, host_ns, 0, host_ns))
    assert graph.has_outrun_record
    assert graph.replayed_step_ns == pytest.approx(step_of(training(us(40))), rel=0.02)
    half = replay(unchanged(graph).scale_work(graph.is_gpu, 0.5))
    assert half.mean_step_ns == pytest.approx(step_of(training(us(20))), rel=0.03)


def test_batches_come_at_the_pace_of_the_record_though_the_window_began_with_some():
    """The window shows no wait; by the record, batches come every 10 ms."""
    recorded = training(us(20), factor=1.5, wait_ns=us(200)).load()
    own_ns = host_step()
    graph = build_step_graph(recorded, pace=RecordedPace(ms(10), own_ns, ms(10), ms(10)))
    assert graph.replayed_step_ns == pytest.approx(ms(10), rel=0.01)
    assert replay(unchanged(graph).scale_work(graph.is_gpu, 0.5)).saving_ns == 0
    assert replay(unchanged(graph).scale_host(graph.host.of(HostCause.PYTHON))).saving_ns == 0
    waits = graph.host.of(HostCause.INPUT, lanes=(graph.main_lane,))
    fed = replay(unchanged(graph).scale_host(waits, 0.0, lanes=(graph.main_lane,)))
    assert fed.saving_ns == pytest.approx(ms(10) - own_ns, rel=0.03)


def test_without_a_record_steps_are_replayed_as_they_were_recorded():
    graph = build_step_graph(training(us(20), factor=2.0).load())
    assert not graph.has_recorded_pace
    assert graph.replayed_step_ns == graph.mean_step_ns


def test_a_host_that_ran_ahead_is_known_by_the_devices_events_though_it_waits_for_batches():
    """Its steps average what it needs itself; by their events the devices took twice as long."""
    host_ns = host_step()
    recorded = training(us(40), factor=2.0, wait_ns=us(100)).load()
    device_ns = round(step_of(training(us(40))))
    starved = RecordedPace(host_ns, host_ns - us(20), 0, host_ns, device_ns)
    assert build_step_graph(recorded, pace=starved).has_outrun_record
    kept = RecordedPace(device_ns, host_ns - us(20), 0, device_ns, device_ns)
    assert not build_step_graph(recorded, pace=kept).has_outrun_record


@pytest.mark.parametrize("is_persistent", [False, True])
def test_starts_of_epochs_make_no_recorded_step_look_slowed(is_persistent, tmp_path):
    """The window has more of them than the record: the pace is of as many as the window has."""
    loader = Loader(
        epoch=6,
        is_persistent=is_persistent,
        sampler_ns=ms(5) if is_persistent else 0,
        start_ns=ms(2),
        worker_start_ns=ms(1),
    )
    program = Program(
        (Kernels(12, us(90), before_ns=us(15), after_ns=us(11), gap_ns=us(20)),),
        loader,
        recording=Recording(first=12, steps=12, has_record=True, steps_after=22),
    )
    assert graph_of(program, tmp_path).host_scale == pytest.approx(1.0, abs=0.03)


def graph_of(program: Program, tmp_path: Path) -> StepGraph:
    """The graph of a simulated training's window, with the pace of its step record."""
    run = write_run(simulate(program), tmp_path / "run")
    record = summarise_steps(read_steps(run / "rank00000" / "steps.jsonl")[0])
    assert record is not None
    trace = stepscope.load(run / "rank00000" / "window-0000" / "trace.json")
    return build_step_graph(trace, pace=recorded_pace(record))


@pytest.mark.parametrize("factor", [1.0, 1.2, 1.5])
@pytest.mark.parametrize("blocking", [Copy(16 << 20, ms(2), False, True), Synchronize()])
def test_a_host_that_waits_for_the_device_after_its_batch_is_slowed_by_recording_alone(
    blocking: Op, factor: float, tmp_path: Path
):
    """While batches come late, the device finishes: what the host does beside these waits is less
    than a step without them takes. Nor do batches in store at the window's start change that."""
    program = Program(
        (blocking, Python(ms(4)), Kernels(24, us(500), before_ns=us(15))),
        Loader(workers=2, waiting_ns=ms(50), cpu_ns=0),
        recording=Recording(first=12, steps=6, host_factor=factor, has_record=True, steps_after=24),
    )
    graph = graph_of(program, tmp_path)
    assert graph.host_scale == pytest.approx(1 / factor, rel=0.02)
    waits = graph.host.of(HostCause.INPUT, lanes=(graph.main_lane,))
    fed = replay(unchanged(graph).scale_host(waits, 0.0, lanes=(graph.main_lane,)))
    assert fed.mean_step_ns == pytest.approx(steady_step_ns(without_input_wait(program)), rel=0.01)


@pytest.mark.parametrize("factor", [1.2, 1.5, 2.0])
def test_the_device_says_exactly_how_far_recording_slows_a_host_that_hardly_limits_it(
    factor: float, tmp_path: Path
):
    """A hundredth more or less in a step is as much as a tenth of what the host does."""
    layer = (Kernels(8, us(90), before_ns=us(15), after_ns=us(11)), Read(in_call=True))
    program = Program(
        (Kernels(40, us(2), before_ns=us(40)), Copy(16 << 20, ms(2), False, True), *(12 * layer)),
        Loader(workers=4, waiting_ns=us(100), cpu_ns=us(200)),
        recording=Recording(first=12, steps=6, host_factor=factor, has_record=True, steps_after=24),
    )
    graph = graph_of(program, tmp_path)
    assert graph.host_scale == pytest.approx(1 / factor, rel=0.02)
    assert graph.replayed_step_ns == pytest.approx(steady_step_ns(program), rel=0.002)


@pytest.mark.parametrize("factor", [1.0, 1.2, 1.5])
def test_recording_does_not_slow_the_garbage_collector(factor: float, tmp_path: Path):
    """If it did, half of this host's time would be slowed by more than all of it is."""
    collector = Collector(ms(6))
    layers = (Python(ms(6)), Kernels(24, us(100), before_ns=us(15)))
    program = Program(
        (collector, *layers),
        Loader(workers=2, waiting_ns=us(100), cpu_ns=us(200)),
        recording=Recording(first=12, steps=6, host_factor=factor, has_record=True, steps_after=24),
    )
    graph = graph_of(program, tmp_path)
    assert graph.host_scale == pytest.approx(1 / factor, rel=0.02)
    pauses = graph.host.of(HostCause.GARBAGE_COLLECTION)
    without = replay(unchanged(graph).scale_host(pauses))
    steady_ns = steady_step_ns(replace(program, body=layers))
    assert without.mean_step_ns == pytest.approx(steady_ns, rel=0.01)
