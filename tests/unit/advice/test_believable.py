"""Steps that lack GPU work are left out and counted; too many of them leave no verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.gpu_trace import COMM_STREAM, GpuTrace, ms, us
from tests.support.planted import dump

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.analysis.host.steady_steps import StepState, steady_steps
from stepscope.analysis.idle import idle_causes
from stepscope.analysis.selection.lost_work import lost_work
from stepscope.analysis.selection.scope import Scope
from stepscope.analysis.timeline import break_down
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis.sentences import step_basis


def training(vendor: str = "nvidia", *, annotate_steps: bool = True) -> GpuTrace:
    """Six steps of 5 ms that the GPU works through without delay."""
    t = GpuTrace(vendor=vendor, annotate_steps=annotate_steps)
    for _ in range(6):
        with t.step(dur_ns=ms(5)):
            t.call("cudaMemcpyAsync")  # of no bytes: without GPU work
            for _ in range(8):
                t.op("aten::mm").launch("gemm", us(400))
            t.op("c10d::allreduce_").launch("ncclDevKernel_AllReduce", us(300), stream=COMM_STREAM)
    return t


def without(t: GpuTrace, is_lost: Callable[[dict], bool]) -> GpuTrace:
    """The same recording without some of its kernels."""
    t.events = [e for e in t.events if not (e["cat"] == "kernel" and is_lost(e))]
    return t


def in_steps(t: GpuTrace, *steps: int) -> Callable[[dict], bool]:
    lost = {w.start_ns for w in t.work if w.step in steps}
    return lambda event: event["ts"] in lost


def judged(tmp_path: Path, t: GpuTrace) -> Diagnosis:
    path = tmp_path / "trace.json"
    path.write_bytes(dump(t))
    return diagnose(open_run(str(path)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("vendor", ["nvidia", "amd"])
@pytest.mark.parametrize(
    ("lost", "counted"),
    [
        ((0,), (2, 3, 4, 5)),
        ((0, 1), (3, 4, 5)),
        ((2,), (0, 1)),
        ((5,), (0, 1, 2, 3, 4)),
        ((4, 5), (0, 1, 2, 3)),
    ],
)
def test_steps_without_their_work_are_no_part_of_the_step(tmp_path, vendor, lost, counted):
    t = training(vendor)
    trace = without(t, in_steps(t, *lost)).load()
    assert lost_work(trace).lacking() == lost
    steady = steady_steps(trace)
    assert steady.steps == counted
    truth = steady_steps(training(vendor).load(), Scope(steps=counted))
    assert steady.step_ns == pytest.approx(truth.step_ns, abs=us(1))
    if lost != (5,):
        diagnosis = judged(tmp_path, t)
        titles = [finding.title for finding in diagnosis.findings]
        assert f"the GPU's work of {len(lost)} of 6 steps was not recorded" in titles
        assert "uncertain" not in diagnosis.verdict


@pytest.mark.parametrize("lost", [(0, 1, 2), (1, 2, 3), (3, 4, 5), (0, 1, 2, 3, 4)])
def test_half_of_the_steps_without_work_leave_no_verdict(tmp_path, lost):
    t = training()
    diagnosis = judged(tmp_path, without(t, in_steps(t, *lost)))
    words = f"uncertain: the GPU's work of {len(lost)} of 6 steps was not recorded"
    assert diagnosis.verdict.startswith(words)


def test_one_of_two_streams_is_missed():
    t = training()
    lost = in_steps(t, 0, 1)
    trace = without(t, lambda event: event["tid"] == COMM_STREAM and lost(event)).load()
    steady = steady_steps(trace)
    assert [one.step for one in steady.of_state(StepState.WORK_LOST)] == [0, 1]
    assert steady.steps == (3, 4, 5)  # nobody knows when the work of step 1 ended


def test_a_file_without_steps_that_lacks_work_has_no_verdict_and_no_cause(tmp_path):
    t = training(annotate_steps=False)
    trace = without(t, in_steps(t, 2, 3)).load()
    idle = idle_causes(trace)
    assert idle.of("unknown") == pytest.approx(ms(11.8), abs=us(50))
    diagnosis = judged(tmp_path, t)
    assert diagnosis.verdict.startswith("uncertain: 33% of the launches have no GPU work")
    assert [finding.id for finding in diagnosis.findings] == ["trace-incomplete"]
    assert all(finding.saving_ns is None for finding in diagnosis.findings)


def test_launches_that_the_recorder_did_not_see_run_are_ordinary(tmp_path):
    """The host is ahead of the GPU when the recording ends."""
    t = GpuTrace(annotate_steps=False)
    for _ in range(6):
        with t.step():
            for _ in range(8):
                t.op("aten::mm").launch("gemm", us(40))
    end_ns = t.now
    without(t, lambda event: event["ts"] + event["dur"] > end_ns)
    lost = lost_work(t.load())
    assert (lost.lost, lost.launches) == (0, 48)
    assert "trace-incomplete" not in [finding.id for finding in judged(tmp_path, t).findings]


def test_copies_of_nothing_and_host_functions_are_no_loss():
    t = training()
    t.call("cudaLaunchHostFunc")
    t.call("cudaMemsetAsync")
    lost = lost_work(t.load())
    assert lost.lost == 0
    assert lost.steps["unlaunched"].sum() == 0


def waiting_for_earlier_work(wait_ns: int) -> GpuTrace:
    """Steps that begin with a blocking copy; the first waits for work that is not in the file."""
    t = GpuTrace()
    for number in range(6):
        with t.step():
            if not number:
                t.launch("earlier", wait_ns)
            t.op("aten::copy_").copy("HtoD", 1 << 24, ms(1), pinned=False)
            for _ in range(8):
                t.op("aten::conv2d").launch("conv", ms(1))
            t.sync()
    launch = next(e for e in t.events if e["cat"] == "kernel" and e["name"] == "earlier")
    gone = launch["args"]["correlation"]
    t.events = [e for e in t.events if e.get("args", {}).get("correlation") != gone]
    return t


@pytest.mark.parametrize("wait_ns", [ms(2), ms(6), ms(36)])
def test_what_lies_before_the_first_recorded_work_is_unknown_and_not_idle(wait_ns):
    trace = waiting_for_earlier_work(wait_ns).load()
    steady = steady_steps(trace)
    assert steady.steps == (1, 2, 3, 4, 5)
    assert [one.step for one in steady.of_state(StepState.START_UNKNOWN)] == [0]
    idle = idle_causes(trace)
    per_step = idle.steps["pageable_copy_ns"]
    assert per_step.max() - per_step.min() < us(100)
    # The report and the table of idle time divide the same time by the same causes.
    scope = Scope(steps=steady.steps)
    report = break_down(trace, scope)
    assert report is not None
    shown = idle_causes(trace, scope)
    assert report.partition.of("idle: pageable copies") == shown.of("pageable_copy")
    assert shown.of("pageable_copy") == per_step[1:].sum()


def test_the_first_step_begins_when_a_call_has_waited_for_earlier_work():
    t = GpuTrace()
    for number in range(6):
        with t.step():
            t.call("cudaStreamSynchronize", ms(30) if not number else us(2))
            for _ in range(8):
                t.op("aten::mm").launch("gemm", ms(1))
            t.sync()
    trace = t.load()
    steady = steady_steps(trace)
    assert steady.steps == (0, 1, 2, 3, 4, 5)
    assert trace.device_steps["start_ns"][0] == t.start_ns + ms(30)
    assert idle_causes(trace, Scope(steps=steady.steps)).of("synchronisation") < ms(1)


def test_a_first_step_after_which_the_gpu_is_idle_is_judged():
    t = GpuTrace()
    for _ in range(6):
        with t.step():
            t.data_wait(ms(6))
            for _ in range(8):
                t.op("aten::mm").launch("gemm", ms(1))
            t.sync()
    trace = t.load()
    assert steady_steps(trace).steps == (0, 1, 2, 3, 4, 5)
    assert trace.device_steps["is_start_known"].all()


@pytest.mark.parametrize("every", [6, 30])
def test_impossible_ends_of_much_of_the_work_leave_no_verdict(tmp_path: Path, every: int) -> None:
    t = training("amd")
    products = [event for event in t.events if event["name"] == "gemm"]
    for event in products[::every]:
        event["dur"] += ms(3000)
    diagnosis = judged(tmp_path, t)
    (rank,) = diagnosis.ranks
    assert rank.step_ns == pytest.approx(ms(5), rel=0.1)
    found = [finding for finding in diagnosis.findings if finding.id == "trace-incomplete"]
    if every == 30:
        assert not found
        assert not diagnosis.verdict.startswith("uncertain")
        return
    assert found[0].title == "the recorded ends of 15% of the GPU work are impossible"
    assert found[0].evidence[0].value == len(products[::6])
    assert diagnosis.verdict == f"uncertain: {found[0].title}, so what limits the step is unknown"


def test_the_step_of_a_trace_without_its_gpu_work_is_the_hosts(tmp_path: Path) -> None:
    lost = judged(tmp_path, without(training(), lambda _: True))
    assert step_basis(lost, lost.shown) == (
        "mean of the steps in the trace on the host; recording slows them down"
    )
    whole = judged(tmp_path, training())
    assert step_basis(whole, whole.shown) == (
        "mean of the steps in the trace; recording slows them down"
    )
