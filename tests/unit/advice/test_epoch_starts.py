"""What the start of an epoch costs, against simulated trainings whose workers live on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.simulator import Program, fixes, simulate, steady_step_ns, write_run, write_trace
from tests.support.simulator.program import MS, US, Kernels, Loader, Python, Recording

from stepscope.advice.diagnosis import diagnose
from stepscope.opening.reader import open_run


def program(*, has_record: bool, work_ns: int, dispatch_ns: int, epoch: int = 6) -> Program:
    """Two workers that start anew in each epoch, 8 ms each."""
    return Program(
        body=(Kernels(8, work_ns // 8, "gemm", dispatch_ns // 8),),
        loader=Loader(
            workers=2,
            waiting_ns=200 * US,
            cpu_ns=0,
            epoch=epoch,
            is_persistent=False,
            start_ns=8 * MS,
            worker_start_ns=1 * MS,
        ),
        recording=Recording(
            first=2 * epoch,
            steps=2 * epoch,
            has_record=has_record,
            steps_after=4 * epoch if has_record else 0,
        ),
    )


def diagnosed(one: Program, folder) -> dict:
    timeline = simulate(one)
    if one.recording.has_record:
        path = write_run(timeline, folder / "run")
    else:
        path = write_trace(timeline, folder / "trace.pt.trace.json")
    return {finding.id: finding for finding in diagnose(open_run(str(path))).findings}


def truth_of(one: Program) -> float:
    now_ns = steady_step_ns(one)
    before, after = fixes(one)["slow-epoch-start"]
    assert before == one
    return (now_ns - steady_step_ns(after)) / now_ns


@pytest.mark.parametrize("has_record", [False, True])
def test_a_host_that_starts_workers_is_told_what_that_costs(has_record, tmp_path):
    one = program(has_record=has_record, work_ns=2 * MS, dispatch_ns=3 * MS)
    found = diagnosed(one, tmp_path)
    finding = found["slow-epoch-start"]
    assert finding.saving_ns / steady_step_ns(one) == pytest.approx(truth_of(one), abs=0.05)
    assert "persistent_workers=True" in finding.advice
    assert "cpu-bound-python" not in found
    assert "slow-first-steps" not in found


@pytest.mark.parametrize("has_record", [False, True])
def test_a_start_that_the_gpu_hides_costs_nothing(has_record, tmp_path):
    """16 ms of starting workers every six steps, and 10 ms of GPU work in each."""
    one = program(has_record=has_record, work_ns=10 * MS, dispatch_ns=1 * MS)
    assert truth_of(one) == pytest.approx(0, abs=0.001)
    assert "slow-epoch-start" not in diagnosed(one, tmp_path)


def test_no_number_where_each_worker_makes_one_batch(tmp_path):
    """Epochs of two steps do not show what a worker that is there takes for a batch."""
    one = program(has_record=True, work_ns=2 * MS, dispatch_ns=3 * MS, epoch=2)
    loader = replace(one.loader, worker_start_ns=30 * MS)
    finding = diagnosed(replace(one, loader=loader), tmp_path)["slow-epoch-start"]
    assert finding.saving_ns is None
    assert finding.saving_reason.startswith("between ")


def test_python_elsewhere_is_python(tmp_path):
    one = program(has_record=False, work_ns=2 * MS, dispatch_ns=3 * MS)
    one = replace(one, body=(Python(4 * MS), *one.body))
    found = diagnosed(one, tmp_path)
    now_ns = steady_step_ns(one)
    before, after = fixes(one)["cpu-bound-python"]
    assert before == one
    promised = found["cpu-bound-python"].saving_ns / now_ns
    assert promised == pytest.approx((now_ns - steady_step_ns(after)) / now_ns, abs=0.03)
