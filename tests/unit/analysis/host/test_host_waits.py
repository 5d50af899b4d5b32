"""Waiting for a batch and for communication on the CPU, where nothing of the thread is recorded."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us

from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.critical_path import critical_path
from stepscope.analysis.host.partition import partition_host
from stepscope.analysis.host.waits import communication_waits, input_waits
from stepscope.analysis.input_pipeline import input_pipeline
from stepscope.opening.reader import open_run

GLOO = 2000


def job(wait, *, python=0, steps=4, backend="gloo", overlap=0):
    """Steps on a CPU: work, a collective that another thread does, and waiting for it.

    Args:
        wait: How long the thread waits for it after it has asked for it.
        python: Python after that.
        steps: How many.
        backend: Whose thread it is.
        overlap: How long the thread works while the collective goes on, before it waits.
    """
    t = GpuTrace()
    for _ in range(steps):
        with t.step():
            t.op("aten::mm").python(ms(5))
            t.op("c10d::allreduce_").python(us(50))
            with t.beside(GLOO, "pt_gloo_runloop"), t.annotate(f"{backend}:all_reduce"):
                t.python(wait + overlap)
            if overlap:
                t.op("aten::mm").python(overlap)
            t.python(wait + python)
            t.op("aten::add_").python(us(100))
    return t


def lane_of_main(trace):
    return int(trace.steps["lane_id"][0])


def waited(trace):
    lane = lane_of_main(trace)
    return communication_waits(trace, (lane,))[lane].total_ns


@pytest.mark.parametrize("backend", ["gloo", "mpi", "ucc"])
def test_a_quiet_thread_waits_for_the_collective_of_another(backend):
    trace = job(ms(10), backend=backend).load()
    assert waited(trace) == pytest.approx(4 * ms(10), rel=0.01)


def test_time_after_the_collective_is_no_wait():
    trace = job(ms(10), python=ms(3)).load()
    assert waited(trace) == pytest.approx(4 * ms(10), rel=0.01)
    causes = dict(critical_path(trace).causes.select("cause", "total_ns").iter_rows())
    assert causes["waiting for communication"] == pytest.approx(4 * ms(10), rel=0.01)
    assert causes["host, cause not recorded"] == pytest.approx(4 * ms(3), rel=0.05)


def test_what_is_worked_through_is_no_wait():
    # Nearly all of the collective lies beside an operator; the rest is too short to tell.
    assert waited(job(us(100), overlap=ms(10)).load()) == 0
    # Mostly Python, while a collective runs for a part of it, is Python.
    assert waited(job(ms(2), python=ms(8)).load()) == 0


def test_nccl_notes_calls_on_the_thread_itself_and_those_are_no_waits():
    assert waited(job(ms(10), backend="nccl").load()) == 0


def test_the_partition_calls_it_communication():
    trace = job(ms(10)).load()
    partition = partition_host(trace).partition
    assert sum(part.total_ns for part in partition.parts) == partition.total_ns
    assert partition.of("communication") == pytest.approx(4 * ms(10), rel=0.02)
    assert partition.of("other") < ms(1)


def test_the_finding_is_communication_and_not_python(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(job(ms(10)).json())
    findings = {finding.id: finding for finding in diagnose(open_run(str(path))).findings}
    assert "cpu-bound-python" not in findings
    found = findings["exposed-communication"]
    assert found.saving_ns == pytest.approx(ms(10), rel=0.02)
    path.write_bytes(job(us(100), python=ms(10)).json())
    findings = {finding.id: finding for finding in diagnose(open_run(str(path))).findings}
    assert "exposed-communication" not in findings
    assert findings["cpu-bound-python"].saving_ns == pytest.approx(ms(10), rel=0.02)


@pytest.mark.parametrize("phase", ["data", "Input", "data_wait"])
def test_a_phase_that_fetches_the_batch_is_input_as_in_the_step_record(phase):
    t = GpuTrace()
    for _ in range(3):
        with t.step():
            with t.annotate(phase):
                t.python(ms(4))
            with t.annotate("loss"):
                t.op("aten::mm").python(ms(6))
    trace = t.load()
    partition = partition_host(trace).partition
    assert partition.of("input") == 3 * ms(4)
    causes = dict(critical_path(trace).causes.select("cause", "total_ns").iter_rows())
    assert causes["input"] == 3 * ms(4)
    assert input_pipeline(trace).wait_ns == 3 * ms(4)


READER = 3000


def fed(read, *, steps=5, stacks=False, python=0, simple=False):
    """Steps whose batches another thread reads from a DataLoader, one after the other."""
    t = GpuTrace(device_name=None)
    take = "<built-in method get of _queue.SimpleQueue object>" if simple else "queue.py(154): get"
    for _ in range(steps):
        with t.step():
            with t.beside(READER, "loader"):
                arrives = t.now + read
                t.data_wait(read, workers=False)
            t.python(python)
            waits = max(0, arrives + us(50) - t.now)
            if stacks:
                with t.frame(take):
                    t.python(waits)
            else:
                t.python(waits)
            t.op("aten::mm").python(ms(10))
    return t.load()


def waited_for_input(trace):
    lane = lane_of_main(trace)
    return input_waits(trace, (lane,))[lane].total_ns


@pytest.mark.parametrize("how", [{}, {"stacks": True}, {"stacks": True, "simple": True}])
def test_waiting_for_a_thread_that_reads_a_loader_is_input(how):
    trace = fed(ms(30), **how)
    # The reader begins each batch as soon as it has the last one, beside 10 ms of computing.
    host = partition_host(trace)
    share = host.partition.of("input") / host.partition.total_ns
    assert 0.5 < share < 0.8
    assert waited_for_input(trace) >= 0.9 * host.partition.of("input")


def test_python_while_another_thread_reads_is_no_input():
    trace = fed(ms(2), python=ms(20))
    assert waited_for_input(trace) == 0


def test_a_thread_that_reads_a_loader_itself_waits_for_no_other():
    t = GpuTrace(device_name=None)
    for _ in range(4):
        with t.step():
            with t.beside(READER, "loader"):
                t.data_wait(ms(20), workers=False)
            t.data_wait(ms(1))
            t.python(ms(19))
            t.op("aten::mm").python(ms(5))
    assert waited_for_input(t.load()) == 0
