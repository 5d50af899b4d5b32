"""A training thread that sleeps is named, however busy the CPUs are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.gpu_trace import GpuTrace, ms
from tests.support.one_step import check_diagnosis
from tests.support.planted import dump
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.finding import Finding
from stepscope.analysis.record.step_patterns import asleep, host_times
from stepscope.opening.reader import RankRun, open_run
from stepscope.run.step_record import StepRecord

STEPS = 4


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def judged(t: GpuTrace, records: Sequence[StepRecord]) -> list[Finding]:
        path = tmp_path / "trace.pt.trace.json"
        path.write_bytes(dump(t))
        monkeypatch.setattr(RankRun, "steps", tuple(records))  # as if beside the trace
        diagnosis = diagnose(open_run(str(path)))
        check_diagnosis(diagnosis)
        assert diagnosis.findings[0].id == "busy-cpus"
        return [one for one in diagnosis.findings if one.id == "cpu-bound-python"]

    return judged


def _window(stretches: Callable[[int], tuple[float, float]], steps: int = STEPS) -> GpuTrace:
    """Steps of 100 ms on busy CPUs, with Python after the forward and after the backward."""
    t = GpuTrace(device_name=None)
    for step in range(steps):
        first_ms, second_ms = stretches(step)
        with t.step():
            t.op("aten::linear").python(ms(20))
            t.python(ms(first_ms))
            t.op("autograd::engine::evaluate_function: AddmmBackward0").python(ms(19))
            t.python(ms(second_ms))
            with t.annotate("Optimizer.step#SGD.step"):
                t.op("aten::_foreach_add_").python(ms(1))
    return t


def _record(cpu_ms: float, queued_ms: float, **more: Any) -> list[StepRecord]:
    return step_records([100.0] * 40, cpu_ms=cpu_ms, queued_ms=queued_ms, **more)


def test_a_sleep_is_named_with_its_length(found):
    """Of 60 ms of Python, the thread neither runs nor has no CPU for 40 ms."""
    (finding,) = found(_window(lambda _: (2, 58)), _record(12, 48))
    assert finding.title.startswith("the training thread sleeps or waits outside operators")
    assert finding.saving_ns == ms(40)
    assert finding.predicted_step_ns == ms(60)
    seen = {one.label: one.value for one in finding.evidence}
    assert str(seen["the longest stretch is"]).startswith(
        "after autograd::engine::evaluate_function: AddmmBackward0 and before "
    )


@pytest.mark.parametrize(
    ("stretches", "record"),
    [
        pytest.param(lambda _: (2, 58), _record(20, 80), id="never asleep"),
        pytest.param(lambda _: (2, 58), _record(12, 80), id="a little"),
        pytest.param(
            lambda step: (2, 58) if step % 2 else (58, 2), _record(12, 48), id="changing places"
        ),
        pytest.param(lambda _: (30, 30), _record(2, 31), id="longer than the stretches"),
        pytest.param(lambda _: (2, 58), _record(12, 48, waits_ms=40), id="waits for input"),
    ],
)
def test_nothing_is_said_of_a_thread_that_has_no_cpu(found, stretches, record):
    assert not found(_window(stretches), record)


def test_two_recorded_steps_show_no_place(found):
    assert not found(_window(lambda _: (2, 58), steps=2), _record(12, 48))


def _with_forward(outside_ms: float) -> GpuTrace:
    """Steps of 100 ms on busy CPUs with Python before their forward, and all else in phases."""
    t = GpuTrace(device_name=None)
    for _ in range(STEPS):
        with t.step():
            t.python(ms(outside_ms))
            for name in ("forward", "backward", "optimizer"):
                with t.annotate(name):
                    t.op("aten::linear").python(ms((100 - outside_ms) / 3))
    return t


def test_what_the_loop_does_outside_all_phases_is_named_though_the_cpus_are_busy(found):
    """A busy machine makes all parts of the step longer alike, these 40 ms of 100 as well."""
    phases = {"forward": 20.0, "backward": 20.0, "optimizer": 20.0}
    (finding,) = found(_with_forward(40), _record(20, 80, phases_ms=phases))
    assert finding.title == (
        "Python or a library runs between the optimizer's step and forward, where loops make "
        "batches and log, for 40% of the step"
    )
    assert finding.saving_ns == ms(40)


@pytest.mark.parametrize(
    ("in_window_ms", "in_record_ms"),
    [
        pytest.param(40, 10, id="one window lost its CPU there"),
        pytest.param(10, 40, id="operators take most of it"),
    ],
)
def test_record_and_window_must_agree_on_what_lies_outside(found, in_window_ms, in_record_ms):
    each = (100 - in_record_ms) / 3
    phases = {"forward": each, "backward": each, "optimizer": each}
    assert not found(_with_forward(in_window_ms), _record(20, 80, phases_ms=phases))


def _of_a_data_parallel_rank(outside_ms: float) -> bytes:
    """Steps of 100 ms: before forward the thread does something, and in backward as well.

    No thread notes collectives, as with a backend that is not torch's.
    """
    t = GpuTrace(device_name=None)
    for _ in range(STEPS):
        with t.step():
            t.python(ms(outside_ms))
            with t.annotate("forward"):
                t.op("aten::linear").python(ms(2))
            with t.annotate("backward"):
                t.op("autograd::engine::evaluate_function: AddmmBackward0")
                t.python(ms(98 - outside_ms))
    return dump(t)


@pytest.mark.parametrize(
    ("cpu_ms", "title"),
    [
        pytest.param(10, "the training thread sleeps or waits outside operators", id="sleeps"),
        pytest.param(
            50,
            "the host delays the step between the optimizer's step and forward, where loops make "
            "batches and log; the cause was not recorded",
            id="may have run in its phases",
        ),
        pytest.param(
            96,
            "Python or a library runs between the optimizer's step and forward, where loops make "
            "batches and log, and delays the step",
            id="runs",
        ),
    ],
)
def test_of_ranks_whose_waits_the_trace_does_not_show_a_late_one_may_sleep(tmp_path, cpu_ms, title):
    """What the late rank takes outside all phases is no wait for the others."""
    outside_ms = {0: 1, 1: 90}
    records = {
        rank: step_records(
            [100.0] * 40,
            cpu_ms=10 if rank == 0 else cpu_ms,
            queued_ms=0,
            phases_ms={"forward": 2.0, "backward": 98.0 - outside},
        )
        for rank, outside in outside_ms.items()
    }
    windows = {rank: _of_a_data_parallel_rank(ms) for rank, ms in outside_ms.items()}
    diagnosis = diagnose(open_run(str(write_run(tmp_path, records, windows=windows))))
    assert diagnosis.skew is not None
    assert diagnosis.skew.late == (1,)
    finding = next(one for one in diagnosis.findings if one.id == "cpu-bound-python")
    assert (finding.rank, finding.title) == (1, title)


@pytest.mark.parametrize(
    ("ranks", "cpu_ms", "phases", "saves_ms"),
    [
        pytest.param(1, 10, ("forward", "backward"), 70, id="one rank"),
        pytest.param(2, 10, ("forward", "backward"), 70, id="a late rank"),
        pytest.param(1, 75, ("forward", "backward"), None, id="it may run there"),
        pytest.param(1, 10, ("backward",), None, id="forward may lie outside"),
    ],
)
def test_a_rank_without_a_window_sleeps_by_its_record(tmp_path, ranks, cpu_ms, phases, saves_ms):
    """Of 100 ms, 80 lie outside all phases; 10 are forward and the rest backward."""
    records = {}
    for rank in range(ranks):
        is_late = rank == ranks - 1
        times = {"forward": 10.0, "backward": 10.0 if is_late else 89.0}
        records[rank] = step_records(
            [100.0] * 40,
            cpu_ms=cpu_ms,
            queued_ms=0,
            phases_ms={name: times[name] for name in phases},
        )
    diagnosis = diagnose(open_run(str(write_run(tmp_path, records))))
    check_diagnosis(diagnosis)
    found = [one for one in diagnosis.findings if one.id == "cpu-bound-python"]
    if saves_ms is None:
        assert not found
        return
    (finding,) = found
    assert (finding.rank, finding.saving_ns) == (ranks - 1, ms(saves_ms))
    assert "sleeps or waits outside all phases" in finding.title
    assert diagnosis.verdict.startswith("cpu-bound-python")


def _of_an_inference(outside_ms: float) -> GpuTrace:
    t = GpuTrace(device_name=None)
    for _ in range(STEPS):
        with t.step():
            t.python(ms(outside_ms))
            with t.annotate("forward"):
                for _ in range(10):
                    t.op("aten::addmm").python(ms((100 - outside_ms) / 10))
    return t


@pytest.mark.parametrize(
    ("cpu_ms", "queued_ms", "title", "advised"),
    [
        pytest.param(
            60,
            0,
            "the main thread sleeps or waits outside operators",
            "Take sleeps and polling out of the loop",
            id="sleeps",
        ),
        pytest.param(
            100,
            0,
            "Python or a library runs between two passes through the model, where loops make "
            "inputs and handle results, and delays the step",
            "Prepare the next inputs",
            id="runs",
        ),
        pytest.param(
            20,
            80,
            "Python or a library runs between two passes through the model, where loops make "
            "inputs and handle results, for 40% of the step",
            "Prepare the next inputs",
            id="on busy CPUs",
        ),
        pytest.param(
            None,
            None,
            "the host delays the step between two passes through the model, where loops make "
            "inputs and handle results; the cause was not recorded",
            "Prepare the next inputs",
            id="unknown",
        ),
    ],
)
def test_an_inference_has_words_of_its_own(
    tmp_path, monkeypatch, cpu_ms, queued_ms, title, advised
):
    records = step_records(
        [100.0] * 40, cpu_ms=cpu_ms, queued_ms=queued_ms, phases_ms={"forward": 60.0}
    )
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(_of_an_inference(40)))
    monkeypatch.setattr(RankRun, "steps", tuple(records))
    diagnosis = diagnose(open_run(str(path)))
    check_diagnosis(diagnosis)
    (finding,) = (one for one in diagnosis.findings if one.id == "cpu-bound-python")
    assert finding.title == title
    assert advised in finding.advice
    said = f"{finding.title} {finding.assumption} {finding.advice}"
    assert "training" not in said
    assert "optimizer" not in said


def test_a_thread_that_waits_between_an_engines_steps_may_have_no_request(tmp_path):
    t = GpuTrace(annotate_steps=False)
    with t.frame("vllm/v1/engine/core.py(600): run_busy_loop"):
        for number in range(8):
            with t.annotate(f"execute_context_0(0)_generation_{number}({number})"):
                t.op("aten::mm").launch("sm90_xmma_gemm", ms(3))
            t.sync()
            with t.frame("queue.py(154): get"):
                t.python(ms(0.1))
                with t.frame("<built-in method acquire of _thread.lock object at 0x7f>"):
                    t.python(ms(14))
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(t))
    found = diagnose(open_run(str(path))).findings
    (finding,) = (one for one in found if one.id == "cpu-bound-python")
    assert finding.title == "the main thread sleeps or waits in queue.py(154): get"
    assert finding.advice.startswith("If no request was waiting, nothing is wrong.")


def test_what_a_thread_sleeps_is_one_number_of_the_record():
    """The mean of the steps, each by itself: one that ran all the time does not hide another."""
    records = [
        *step_records([100.0] * 20, cpu_ms=20, queued_ms=30, waits_ms=10, wait_cpu_ms=4),
        *step_records([40.0] * 20, cpu_ms=60, queued_ms=0),
    ]
    assert [asleep(one) for one in (records[0], records[-1])] == [ms(44), 0]
    assert host_times(records).asleep_ns == ms(22)
    unknown = step_records([100.0], queued_ms=3)
    assert asleep(unknown[0]) is None
    assert host_times([*records, *unknown]).asleep_ns is None
