"""Workers that began together deliver together: whole rounds tell a step's time, parts do not.

The oracle is the simulated training's steady step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.simulator import Program, simulate, steady_step_ns, write_trace
from tests.support.simulator.program import MS, US, Copy, Kernels, Loader, Once, Recording

import stepscope
from stepscope.analysis.graph.build import build_step_graph
from stepscope.analysis.graph.replay import replay, unchanged
from stepscope.analysis.host.steady_steps import StepState, steady_steps
from stepscope.analysis.selection.outlier_steps import round_starts


def program(workers: int, first: int, steps: int, **loader: float) -> Program:
    """Steps of 4 ms of GPU work, whose batches take each worker 10 ms per worker."""
    slow = {"waiting_ns": 10 * MS * workers, "cpu_ns": 0} | loader
    return Program(
        body=(Kernels(10, MS * 4 // 10),),
        loader=Loader(workers=workers, **slow),
        recording=Recording(first=first, steps=steps),
    )


def recorded(one: Program, folder) -> stepscope.Trace:
    return stepscope.load(write_trace(simulate(one), folder / "trace.pt.trace.json"))


@pytest.mark.parametrize("workers", [2, 3, 4])
@pytest.mark.parametrize("beyond", [0, 1])
def test_the_steps_that_count_are_whole_rounds(workers, beyond, tmp_path):
    one = program(workers, 12, 2 * workers + beyond)
    trace = recorded(one, tmp_path)
    steady = steady_steps(trace)
    assert len(steady.steps) % workers == 0
    assert steady.step_ns == pytest.approx(steady_step_ns(one), rel=0.02)
    graph = build_step_graph(trace)
    assert graph.steady_state_ns == pytest.approx(steady_step_ns(one) * len(graph.steps), rel=0.02)
    left_out = steady.of_state(StepState.PART_OF_ROUND)
    assert [step.step for step in left_out] == list(range(12, 12 + beyond))


@pytest.mark.parametrize("workers", [True, False])
def test_a_loader_without_workers_makes_no_batch_before_its_step(workers):
    """On a busy machine, some batches take the training's own thread far longer than others."""
    t = GpuTrace(device_name=None)
    for wait_us in (400, 3600, 5900):
        with t.step():
            t.data_wait(us(wait_us), workers=workers)
            t.op("aten::mm").python(ms(30))
    steady = steady_steps(t.load())
    left_out = [step.step for step in steady.of_state(StepState.PART_OF_ROUND)]
    assert left_out == ([0] if workers else [])
    assert len(steady.steps) == 3 - len(left_out)


def test_a_first_step_that_waited_is_left_out_with_its_reason(tmp_path):
    steady = steady_steps(recorded(program(4, 15, 3), tmp_path))
    assert [step.step for step in steady.of_state(StepState.START_UP)] == [15]
    assert any("step 15 waited 19.9 ms for its input" in note for note in steady.notes)


@pytest.mark.parametrize(
    ("waits", "starts"),
    [
        ([9, 0, 0, 8, 0, 0, 9], [0, 3, 6]),
        ([9, 5, 9, 5, 9], [0, 2, 4]),
        ([9, 8, 9, 9, 8], [0, 1, 2, 3, 4]),
        ([9, 9, 5, 9, 9, 5], [0, 3]),
    ],
)
def test_rounds_begin_where_waits_come_again(waits, starts):
    assert round_starts(np.array(waits)).tolist() == starts


def test_a_pace_that_few_unequal_batches_show_makes_no_steps_longer(tmp_path):
    """Batches come as fast as the device works; by chance, few of them seem to come slower."""
    longer = 0
    for first in range(12, 36):
        one = program(2, first, 6, waiting_ns=8 * MS, spread=0.2)
        longer += build_step_graph(recorded(one, tmp_path)).had_store
    assert longer <= 2


def test_waits_at_the_start_of_epochs_are_no_pace(tmp_path):
    costs = {"waiting_ns": 0, "cpu_ns": MS // 10, "epoch": 4, "worker_start_ns": 30 * MS}
    graph = build_step_graph(recorded(program(2, 12, 8, is_persistent=False, **costs), tmp_path))
    assert not len(graph.arrivals)
    assert graph.steps == tuple(range(12, 20))


@pytest.mark.parametrize("workers", [1, 4])
def test_steps_that_use_up_batches_in_store_do_not_count(workers, tmp_path):
    """While modules are loaded in the first step, workers fill the store."""
    one = program(workers, 1, 4 * workers + 6)
    one = replace(one, body=(Once("cuModuleLoadData", 100 * MS, 1), *one.body))
    steady = steady_steps(recorded(one, tmp_path))
    assert steady.step_ns == pytest.approx(steady_step_ns(one), rel=0.04)


@pytest.mark.parametrize("start", ["running", "unseen"])
def test_the_steps_that_count_are_whole_epochs(start, tmp_path):
    """The device hides what the host does where an epoch begins, until its work takes half."""
    loader = Loader(workers=2, epoch=4, sampler_ns=6 * MS, cpu_ns=MS // 10)
    half = Program(body=(Kernels(48, 44 * US, before_ns=15 * US, after_ns=11 * US),), loader=loader)
    kernels = Kernels(48, 88 * US, before_ns=15 * US, after_ns=11 * US)
    recording = Recording(first=24, steps=8, start=start)
    trace = recorded(replace(half, body=(kernels,), recording=recording), tmp_path)
    graph = build_step_graph(trace)
    assert len(graph.steps) % 4 == 0
    again = replay(unchanged(graph).scale_work(graph.is_gpu, 0.5))
    assert again.mean_step_ns == pytest.approx(steady_step_ns(half), rel=0.02)


def test_a_first_copy_that_waits_for_unseen_work_leaves_its_step_out(tmp_path):
    """The wait is short, but so are the steps."""
    body = (Copy(400_000, 66 * US, is_pinned=False, is_blocking=True), Kernels(10, 80 * US))
    one = Program(body, recording=Recording(first=12, steps=4, start="unseen"))
    steady = steady_steps(recorded(one, tmp_path))
    assert [step.step for step in steady.of_state(StepState.START_UNKNOWN)] == [12]
    assert steady.step_ns == pytest.approx(steady_step_ns(one), rel=0.01)
