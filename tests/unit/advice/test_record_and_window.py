"""A step record and a recorded window say the same: one step, its parts, and savings from it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.one_step import check_diagnosis
from tests.support.planted import SCENARIOS, dump, optimizer, products
from tests.support.step_records import step_records

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.opening.reader import RankRun, open_run
from stepscope.report.diagnosis.sentences import (
    communication,
    partition_basis,
    step_basis,
    together,
)
from stepscope.report.findings import saving
from stepscope.run.step_record import StepRecord

NOT_RECORDED = "idle: host, cause not recorded"


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def judged(t: GpuTrace, records: list[StepRecord] | None = None) -> Diagnosis:
        path = tmp_path / "trace.pt.trace.json"
        path.write_bytes(dump(t))
        if records is not None:
            monkeypatch.setattr(RankRun, "steps", tuple(records))  # as if beside the trace
        diagnosis = diagnose(open_run(str(path)))
        check_diagnosis(diagnosis)
        return diagnosis

    return judged


def _on_the_cpu(python_ns: list[int], op_ns: int = ms(6)) -> GpuTrace:
    t = GpuTrace(device_name=None)
    for each in python_ns:
        with t.step():
            t.op("aten::mm").python(op_ns)
            t.python(each)
    return t


def test_a_stall_in_the_window_is_a_finding_of_its_own(judge):
    """One stall of 0.5 s in three steps, beside a record of 6.26 ms: no saving of 172 ms a step."""
    window = _on_the_cpu([us(50), ms(500), us(50)])
    diagnosis = judge(window, step_records([6.26] * 60 + [6.5, 506, 6.5], recorded=range(60, 63)))
    assert diagnosis.shown.step_ns == 6_260_000
    (stall,) = (one for one in diagnosis.findings if one.id == "stalled-step")
    assert stall.steps == (1,)
    assert stall.saving_ns is None
    seen = {item.label: item.value for item in stall.evidence}
    assert seen["most of it went into"] == "host, cause not recorded"
    assert seen["there, beyond the other steps"] == pytest.approx(ms(500), rel=0.01)
    assert "cpu-bound-python" not in {one.id for one in diagnosis.findings}


def test_without_a_record_the_stall_is_apart_too(judge):
    diagnosis = judge(_on_the_cpu([us(50), ms(500), us(50)]))
    assert diagnosis.shown.step_ns == pytest.approx(us(6_050), rel=0.01)
    assert any("step 1 took 506 ms" in note for note in diagnosis.shown.notes)
    assert {one.id for one in diagnosis.findings} == {"stalled-step"}


def test_a_slow_first_step_is_no_part_of_the_verdict(judge):
    diagnosis = judge(_on_the_cpu([ms(4_450)] + [ms(3)] * 7, op_ns=ms(490)))
    assert diagnosis.shown.step_ns == pytest.approx(ms(493), rel=0.01)
    assert any("step 0 took 4.94 s, 10 times the others" in n for n in diagnosis.shown.notes)
    (first,) = (one for one in diagnosis.findings if one.id == "slow-first-steps")
    assert first.steps == (0,)
    assert ("most of it went into", "host, cause not recorded") in {
        (e.label, e.value) for e in first.evidence
    }


def test_promises_are_in_the_time_of_unrecorded_steps(judge):
    """Recorded steps take 9.17 ms, the others 6.10 ms: a fix starts from 6.10 ms."""
    window = _on_the_cpu([us(3_170)] * 6)
    diagnosis = judge(window, step_records([6.10] * 60 + [9.17] * 6, recorded=range(60, 66)))
    (finding,) = (one for one in diagnosis.findings if one.id == "cpu-bound-python")
    assert finding.saving_ns == pytest.approx(6.10e6 * 3.17 / 9.17, rel=0.01)
    assert finding.predicted_step_ns == 6_100_000 - finding.saving_ns
    assert "which takes 1.50× as long" in finding.assumption


def test_where_recorded_steps_were_shorter_the_promise_says_what_it_is_a_share_of(judge):
    """Recorded steps take 6.17 ms, the others 9.00 ms: a share may save more than it took."""
    window = _on_the_cpu([us(3_170)] * 6, op_ns=ms(3))
    diagnosis = judge(window, step_records([9.0] * 60 + [6.17] * 6, recorded=range(60, 66)))
    (finding,) = (one for one in diagnosis.findings if one.id == "cpu-bound-python")
    assert finding.saving_ns == pytest.approx(9.0e6 * 3.17 / 6.17, rel=0.01)
    assert "the same share of an unrecorded step as of the recorded ones" in finding.assumption
    assert "which took 6.17 ms" in finding.assumption


def test_phases_of_the_record_win_over_operators_in_the_window(judge):
    """Operators inside a user's phase are no forward: the record has the phase."""
    t = GpuTrace()
    for _ in range(5):
        with t.step():
            t.op("aten::mm").python(us(450))
            with t.annotate("metrics"):
                t.op("aten::topk").python(us(52_600))
    records = step_records([55.0] * 40, phases_ms={"forward": 0.45, "metrics": 52.6})
    diagnosis = judge(t, records)
    assert diagnosis.verdict.startswith("slow-phase: the phase 'metrics' takes 96% of the step")
    partition = diagnosis.shown.partition
    assert partition is not None
    parts = {part.name: partition.per_step_ns(part) for part in partition.parts}
    assert parts["metrics"] == 52_600_000
    assert parts["forward"] == 450_000
    assert partition_basis(diagnosis.shown).startswith("step record")


def test_a_record_that_does_not_time_the_wait_for_input_leaves_it_to_the_window(judge):
    """torch's own profiler by our import line: its loop only says where steps end."""
    t = GpuTrace()
    for _ in range(5):
        with t.step():
            t.data_wait(ms(60))
            t.op("aten::mm").python(ms(4))
    diagnosis = judge(t, step_records([70.0] * 40))
    partition = diagnosis.shown.partition
    assert partition is not None
    assert partition.of("input") / partition.total_ns == pytest.approx(0.94, abs=0.01)
    assert round(partition.total_ns / partition.steps) == ms(70)
    # One that has timed it knows better than the few steps of a window.
    timed = judge(t, step_records([70.0] * 40, waits_ms=35.0)).shown.partition
    assert timed is not None
    assert timed.of("input") / timed.total_ns == pytest.approx(0.5, abs=0.01)


def test_a_gpus_parts_take_the_difference_to_the_record_from_idle_time(judge):
    t = GpuTrace()
    for _ in range(4):
        with t.step():
            products(t, 5)
            t.sync()
            t.python(ms(5))
            optimizer(t)
    recorded = judge(t)
    diagnosis = judge(t, step_records([7.0] * 30))
    before, after = recorded.shown.partition, diagnosis.shown.partition
    assert before is not None
    assert after is not None
    compute = before.of("compute") / before.steps
    assert after.of("compute") / after.steps == pytest.approx(compute, abs=1)
    assert after.of(NOT_RECORDED) < before.of(NOT_RECORDED) / before.steps * after.steps
    assert "fitted to the step record" in partition_basis(diagnosis.shown)
    assert round(after.total_ns / after.steps) == 7_000_000


def test_bursts_of_waiting_are_judged_by_totals(judge):
    """A round of four steps takes 3 s, 1.96 s of it waiting: 65%, whatever the median says."""
    t = GpuTrace()
    for wait_ns in (ms(1_955), us(50), us(50), us(50), ms(1_955)):
        with t.step():
            t.data_wait(wait_ns)
            t.op("aten::mm").python(ms(260))
    diagnosis = judge(t)
    step_ns = diagnosis.shown.step_ns
    assert step_ns == pytest.approx(ms(2_995) / 4, rel=0.01)
    assert "the median is 260 ms" in step_basis(diagnosis, diagnosis.shown)
    (finding,) = (one for one in diagnosis.findings if one.id == "input-bound")
    assert finding.saving_ns == pytest.approx(ms(1_955) / 4, rel=0.01)
    labels = [item.label for item in finding.evidence]
    assert "median step, as the waits come in bursts" in labels
    partition = diagnosis.shown.partition
    assert partition is not None
    assert partition.of("input") / partition.total_ns == pytest.approx(0.65, abs=0.01)


def test_findings_say_what_they_save_together(judge):
    t = GpuTrace()
    for _ in range(6):
        with t.step():
            t.data_wait(ms(10))
            products(t, 4)
            t.sync()
            t.python(ms(10))
            optimizer(t)
    diagnosis = judge(t)
    rank = diagnosis.shown
    savings = {one.id: one.saving_ns for one in rank.findings if one.saving_ns is not None}
    assert {"input-bound", "cpu-bound-python"} <= set(savings)
    assert rank.together_ns is not None
    assert rank.together_ns > max(savings.values())
    assert rank.together_ns < sum(savings.values())
    assert "their savings do not add up" in together(diagnosis)


def test_on_the_cpu_causes_at_different_times_save_their_sum_together(judge):
    t = GpuTrace()
    for _ in range(6):
        with t.step():
            t.data_wait(ms(10))
            t.op("aten::mm").python(ms(4))
            t.python(ms(7))
            t.op("aten::mm").python(ms(4))
    diagnosis = judge(t)
    rank = diagnosis.shown
    savings = {one.id: one.saving_ns for one in rank.findings if one.saving_ns is not None}
    assert set(savings) == {"input-bound", "cpu-bound-python"}
    assert rank.together_ns == pytest.approx(sum(savings.values()), abs=len(savings))
    assert "together save" in together(diagnosis)
    assert "overlap" not in together(diagnosis)


def test_a_file_without_steps_promises_nothing_per_step(judge):
    t = GpuTrace(annotate_steps=False)
    for _ in range(3):
        products(t, 4)
        t.sync()
        t.python(ms(10))
    products(t, 4)
    diagnosis = judge(t)
    (finding,) = (one for one in diagnosis.findings if one.id == "cpu-bound-python")
    assert "in the whole file" in saving(finding)
    assert not [item.label for item in finding.evidence if "per step" in item.label]


def test_communication_that_computation_hides_is_shown(judge):
    t = GpuTrace(world_size=8)
    for _ in range(4):
        with t.step():
            products(t, 6)
            moment = t.collective("all_reduce", 64 << 20, ms(2))
            products(t, 3)
            t.wait_collective(moment)
            optimizer(t)
    rank = judge(t).shown
    assert rank.communication is not None
    total_ns, hidden_ns = rank.communication
    assert total_ns == ms(2)
    assert 0 < hidden_ns <= total_ns
    assert "of which computation hides" in communication(rank)


@pytest.mark.parametrize(
    ("known", "named"),
    [
        ({"gc_ms": 20.0}, "garbage-collector"),
        ({"phases_ms": {"metrics": 20.0}}, "slow-phase"),
        ({"gc_ms": 4.0}, "cpu-bound-python"),
        ({}, "cpu-bound-python"),
    ],
)
def test_the_record_names_the_cause_of_time_in_which_the_trace_is_empty(judge, known, named):
    """21 ms of a 27 ms step without any event: the collector's, a phase's, or any Python's."""
    judged = judge(_on_the_cpu([ms(21)] * 4), step_records([27.0] * 40, **known))
    assert judged.findings[0].id == named
    assert ("cpu-bound-python" in {one.id for one in judged.findings}) == (
        named == "cpu-bound-python"
    )


def test_a_function_that_the_trace_names_is_said_rather_than_its_phase(judge):
    t = GpuTrace()
    for _ in range(4):
        with t.step():
            t.op("aten::mm").python(ms(6))
            with t.annotate("accuracy"):
                t.python(ms(21))
    judged = judge(t, step_records([27.0] * 40, phases_ms={"metrics": 20.0}))
    assert judged.findings[0].title == (
        "the host delays the step in accuracy; the cause was not recorded"
    )


@pytest.mark.parametrize(("running_ms", "runs"), [(26.0, True), (20.0, False)])
def test_the_record_tells_that_the_thread_runs_between_operators(judge, running_ms, runs):
    records = step_records([27.0] * 40, cpu_ms=running_ms, queued_ms=0.0)
    title = judge(_on_the_cpu([ms(21)] * 4), records).findings[0].title
    assert ("runs between operators" in title) == runs
    assert ("the cause was not recorded" in title) == (not runs)


def _looping(get_batch_ms: float, tokens: int) -> GpuTrace:
    """Steps of a loop that makes its batch before forward, whose own work grows with the tokens."""
    t = GpuTrace(device_name=None)
    for _ in range(4):
        with t.step():
            with t.annotate("optimizer"):
                t.op("aten::_fused_adam_").python(ms(1))
            t.python(ms(get_batch_ms))
            with t.annotate("forward"):
                t.op("aten::mm").python(ms(tokens))
            with t.annotate("backward"):
                t.op("aten::mm").python(ms(2 * tokens))
    return t


def test_a_batch_made_in_the_loop_is_placed_before_forward(judge):
    phases = {"forward": 6.0, "backward": 12.0, "optimizer": 1.0}
    records = step_records([30.0] * 40, phases_ms=phases, cpu_ms=30.0, queued_ms=0.0)
    found = judge(_looping(11, tokens=6), records).findings[0]
    assert found.title.startswith("Python or a library runs between the optimizer's step and for")
    assert found.saving_ns == pytest.approx(ms(11), rel=0.05)


def test_what_lies_outside_phases_does_not_grow_with_the_samples(judge):
    """The recorded steps have short samples; making the batch takes as long for the others."""
    phases = {"forward": 15.0, "backward": 30.0, "optimizer": 1.0}
    records = step_records([50.0] * 40, phases_ms=phases, cpu_ms=50.0, queued_ms=0.0)
    (found,) = (
        one
        for one in judge(_looping(4, tokens=2), records).findings
        if one.id == "cpu-bound-python"
    )
    assert found.saving_ns == pytest.approx(ms(4), rel=0.01)


def test_a_phase_of_input_is_taken_once_from_what_lies_outside_phases(judge):
    phases = {"forward": 15.0, "backward": 30.0, "optimizer": 1.0, "get_batch": 10.0}
    records = step_records([60.0] * 40, phases_ms=phases, cpu_ms=60.0, queued_ms=0.0)
    found = {one.id: one for one in judge(_looping(4, tokens=2), records).findings}
    assert found["cpu-bound-python"].saving_ns == pytest.approx(ms(4), rel=0.01)


ENGINE = "<built-in method run_backward of torch._C._EngineBase object at 0x7f01>"


@pytest.mark.parametrize(
    ("frames", "title"),
    [
        ([ENGINE], None),
        (
            [ENGINE, "net.py(3): hook"],
            "Python in net.py(3): hook delays the step",
        ),
    ],
)
def test_a_wait_in_autograds_engine_is_no_python(judge, frames, title):
    t = GpuTrace()
    for _ in range(4):
        with t.step(), contextlib.ExitStack() as stack:
            t.op("aten::mm").python(ms(6))
            for frame in frames:
                stack.enter_context(t.frame(frame))
                t.python(us(1))
            t.python(ms(21))
    titles = {one.id: one.title for one in judge(t).findings}
    assert titles.get("cpu-bound-python") == title


def test_a_fused_optimizer_saves_no_more_than_the_record_says_the_optimizer_takes(judge):
    """Recording makes an optimizer of many operators much longer than it is: 11 of 18 ms here."""
    window = next(one for one in SCENARIOS if one.name == "unfused optimizer on a CPU").build()
    records = step_records([10.0] * 40, phases_ms={"forward": 7.0, "optimizer": 2.0})
    (finding,) = (one for one in judge(window, records).findings if one.id == "unfused-optimizer")
    assert finding.saving_ns == ms(0.8 * 2)
    records = step_records([10.0] * 40, phases_ms={"forward": 7.0})
    (finding,) = (one for one in judge(window, records).findings if one.id == "unfused-optimizer")
    assert finding.saving_ns > ms(3)


def test_a_fused_optimizer_saves_no_more_than_the_report_shows_of_it(judge):
    """Unrecorded steps wait for their input, the recorded ones hardly do."""
    t = GpuTrace(device_name=None)
    for _ in range(3):
        with t.step():
            t.data_wait(us(100))
            t.op("aten::linear").python(ms(2))
            with t.annotate("Optimizer.step#AdamW.step"):
                for _ in range(200):
                    t.op("aten::addcdiv_").python(us(10))
    diagnosis = judge(t, step_records([40.0] * 40, waits_ms=20.0))
    (finding,) = (one for one in diagnosis.findings if one.id == "unfused-optimizer")
    partition = diagnosis.ranks[0].partition
    assert partition is not None
    shown_ns = partition.of("optimizer") / partition.steps
    assert 0 < finding.saving_ns <= 0.8 * shown_ns + 1


def test_steps_that_recording_slowed_are_divided_by_what_was_recorded(judge):
    """One phase of the record is all of the step, and says nothing of what it holds."""
    t = GpuTrace(device_name=None)
    for _ in range(4):
        with t.step(), t.annotate("train_step"):
            t.op("aten::mm").python(ms(6))
            with t.annotate("Optimizer.step#SGD.step"):
                t.op("aten::add_").python(ms(14))
    records = step_records(
        [10.0] * 36 + [20] * 4, phases_ms={"train_step": 9.8}, recorded=range(36, 40)
    )
    verdict = judge(t, records).verdict
    assert (
        verdict
        == "uncertain: recording made the steps 2.0× as long; 70% of a recorded step is optimizer"
    )
