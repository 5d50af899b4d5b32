"""Verdicts and figures as a reader of the report meets them, on labelled traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.planted import SCENARIOS, dump
from tests.support.simulator import random_program, simulate, write_job
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Severity
from stepscope.advice.rank.compute_summary import ComputePart, ComputeSummary
from stepscope.analysis.critical_path import critical_path
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis.sentences import compute_rows, compute_title
from stepscope.run.step_record import StepRecord


def judge(tmp_path: Path, t: GpuTrace) -> Diagnosis:
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(t))
    return diagnose(open_run(str(path)))


def labelled(tmp_path: Path, name: str) -> Diagnosis:
    return judge(tmp_path, next(one for one in SCENARIOS if one.name == name).build())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "a slow start of 30 s",
            "Outside the steady steps: the first step takes 30.0 s, 3,205 times the others",
        ),
        (
            "one abnormal collective",
            "Outside the steady steps: single collectives take far longer than others",
        ),
    ],
)
def test_a_healthy_step_does_not_hide_what_happened_outside_it(tmp_path, name, words):
    verdict = labelled(tmp_path, name).verdict
    assert verdict.startswith("GPU-bound: 9")
    assert words in verdict


def test_what_brings_nothing_alone_because_of_another_rank_is_the_verdict_where_nothing_else_is(
    tmp_path,
):
    """Rank 0's collectives take as long as rank 1's batches let it: 42% of its step."""
    path = write_job(simulate(random_program(11001855)), tmp_path / "job")
    assert diagnose(open_run(str(path))).verdict == (
        "exposed-communication: 42% of the device's time is exposed communication; rank 0's own "
        "step is 6.44 ms shorter without it, but rank 1's is not, and that limits all ranks"
    )


def test_slow_steps_without_a_reason_are_the_verdict_where_they_cost_most(tmp_path):
    lengths = [300 if step in {5, 6, 13} else 10 for step in range(20)]
    run = write_run(tmp_path, {0: step_records(lengths, phases_ms={"forward": 6, "backward": 3})})
    assert diagnose(open_run(run)).verdict == (
        "uneven-steps: 3 of 20 steps take more than twice the median; what they take beyond it is "
        "81% of the time"
    )


def test_evaluations_that_take_much_of_the_run_are_told(tmp_path):
    training = step_records([10] * 20, phases_ms={"forward": 6, "backward": 3})
    for spent_ms, is_told in ((25, False), (60, True)):
        evaluation = StepRecord(20, 0, spent_ms * 2_000_000, kind="evaluation")
        run = write_run(tmp_path / str(spent_ms), {0: [*training, evaluation]})
        words = "Outside the steps, evaluation takes 38% of the recorded time"
        assert (words in diagnose(open_run(run)).verdict) is is_told


def test_code_compiled_in_the_middle_of_the_run_is_told_beside_a_healthy_step(tmp_path):
    compiling = [900 if step == 14 else 0 for step in range(20)]
    records = step_records(
        [10 + one for one in compiling],
        phases_ms={"forward": 6, "backward": 3},
        compile_ms=compiling,
    )
    assert diagnose(open_run(write_run(tmp_path, {0: records}))).verdict == (
        "nothing stands out: 60% of the step is forward. Outside the steady steps: step 14 "
        "compiled code again, for 900 ms (recompilation)"
    )


def test_a_trace_without_the_gpus_side_is_not_judged_as_healthy(tmp_path):
    verdict = labelled(tmp_path, "GPU side missing").verdict
    assert verdict == (
        "uncertain: kernels were launched, but the trace has no GPU work, so what limits the step "
        "is unknown"
    )


def _on_a_late_clock(lag_ns: int, kernels: slice = slice(None)) -> GpuTrace:
    """A training some of whose kernels are recorded so much too early."""
    t = GpuTrace()
    for _ in range(30):
        with t.step():
            t.python(ms(2))
            t.op("aten::mm").launch("gemm", us(100))
            t.sync()
    for event in [one for one in t.events if one["cat"] == "kernel"][kernels]:
        event["ts"] -= lag_ns
    return t


@pytest.mark.parametrize(
    ("lag_ns", "kernels", "words"),
    [
        (us(500), slice(None), "so the GPU's clock is behind the host's by 491 µs or more"),
        (us(500), slice(3, 4), ""),  # one event may be wrong by itself
        (us(10), slice(None), ""),  # what clocks differ by in healthy recordings
    ],
)
def test_a_verdict_says_that_it_rests_on_a_gpu_whose_clock_lags(tmp_path, lag_ns, kernels, words):
    verdict = judge(tmp_path, _on_a_late_clock(lag_ns, kernels)).verdict
    assert ("Uncertain" in verdict) == bool(words), verdict
    assert words in verdict


def test_a_gpu_whose_clock_is_far_behind_the_hosts_is_not_judged(tmp_path):
    t = _on_a_late_clock(ms(100))
    verdict = judge(tmp_path, t).verdict
    assert verdict == (
        "uncertain: by the GPU's clock, all work of the steps ended before they began, so the "
        "clocks of GPU and host disagree, and the step cannot be judged"
    )
    path = critical_path(t.load())
    assert (path.total_ns, path.partition.parts, len(path.segments)) == (0, (), 0)


def test_a_window_of_compilation_says_what_to_do(tmp_path):
    verdict = labelled(tmp_path, "compiling").verdict
    assert verdict.endswith("of the recorded time is compilation; record later to see steady steps")


def _on_two_gpus(*, annotate_steps: bool) -> GpuTrace:
    t = GpuTrace(annotate_steps=annotate_steps)
    for _ in range(3):
        with t.step():
            for t.device in (0, 1):
                for _ in range(5):
                    t.op("aten::mm").launch("gemm", us(1_000))
                t.copy("HtoD", 1 << 24, ms(5), pinned=True)
            t.sync()
    return t


@pytest.mark.parametrize("annotate_steps", [True, False])
def test_times_on_several_gpus_are_those_of_the_mean_gpu(tmp_path, annotate_steps):
    """Both GPUs compute for 5 ms and copy for 5 ms at the same time."""
    diagnosis = judge(tmp_path, _on_two_gpus(annotate_steps=annotate_steps))
    rank = diagnosis.shown
    assert rank.step_ns is not None
    steps = 3 if annotate_steps else 1
    (finding,) = (one for one in diagnosis.findings if one.id == "exposed-copies")
    seen = {item.label: item.value for item in finding.evidence}
    exposed = seen["exposed per step" if annotate_steps else "exposed"]
    assert exposed == pytest.approx(3 * ms(5) / steps, rel=0.02)
    assert exposed <= rank.step_ns
    assert ("mean step of the window" in seen) is annotate_steps
    assert seen["mean step of the window" if annotate_steps else "the whole file"] == rank.step_ns
    words = (
        "5.00 ms of kernels per step" if annotate_steps else "15.0 ms of kernels in the whole file"
    )
    assert compute_title(rank)[1].endswith(f"{words}, on each GPU, their mean")
    assert {label for label, _ in compute_rows(rank)} <= {
        "by kind",
        "by operator",
        "by module",
        "efficiency",
        "not classified",
    }


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (1, "only the first step of the training was recorded, which may be start-up"),
        (2, "only the first 2 steps of the training were recorded, which may be start-up"),
    ],
)
def test_the_first_steps_of_a_training_alone_have_no_verdict(tmp_path, count, told):
    waiting = {"waits_ms": [60.0] * count}
    diagnosis = diagnose(
        open_run(str(write_run(tmp_path, {0: step_records([100.0] * count, **waiting)})))
    )
    assert diagnosis.verdict == f"uncertain: {told}; record more"
    (finding,) = (one for one in diagnosis.findings if one.id == "input-bound")
    assert finding.severity is Severity.LOW
    assert finding.assumption.endswith("other steps behave like the first")
    assert finding.saving_ns == ms(60)


@pytest.mark.parametrize(("count", "were"), [(1, "1 step was"), (2, "2 steps were")])
@pytest.mark.parametrize(
    ("rule", "columns", "saved_ms"),
    [
        ("busy-cpus", {"cpu_ms": 24, "queued_ms": 70}, 70),
        ("input-bound", {"waits_ms": 60}, 60),
        ("garbage-collector", {"gc_ms": 40}, 40),
    ],
)
def test_few_later_steps_weigh_little(tmp_path, count, were, rule, columns, saved_ms):
    """One step of a running training, as of a process that was attached to, may be any."""
    records = [
        replace(one, step=500 + one.step) for one in step_records([100.0] * count, **columns)
    ]
    diagnosis = diagnose(open_run(str(write_run(tmp_path, {0: records}))))
    (finding,) = diagnosis.findings
    assert (finding.id, finding.severity, finding.saving_ns) == (rule, Severity.LOW, ms(saved_ms))
    assert finding.assumption.endswith("other steps behave like those recorded")
    assert diagnosis.verdict.startswith(f"{rule}: ")
    assert diagnosis.verdict.endswith(
        f". Uncertain: only {were} recorded, which may not be typical"
    )


@pytest.mark.parametrize(
    ("first", "steps", "is_told"), [(0, 1, True), (0, 2, False), (7, 1, False)]
)
def test_a_trace_of_the_first_step_alone_may_show_its_start_up(tmp_path, first, steps, is_told):
    t = GpuTrace(first_step=first)
    for _ in range(steps):
        with t.step(), t.op("aten::mm") as op:
            op.launch("gemm", ms(20))
            t.python(ms(30))
    verdict = judge(tmp_path, t).verdict
    told = "the only step in the trace is the first that was profiled, which may be start-up"
    assert (f". Uncertain: {told}" in verdict) == is_told


def test_three_steps_have_a_verdict(tmp_path):
    records = step_records([100.0] * 3, waits_ms=[60.0] * 3)
    diagnosis = diagnose(open_run(str(write_run(tmp_path, {0: records}))))
    assert diagnosis.verdict.startswith("input-bound:")
    assert diagnosis.findings[0].severity is Severity.HIGH


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        (("elementwise", "matrix products"), "matrix products"),
        (("convolutions", "elementwise"), "convolutions"),
        (("convolutions", "matrix products"), "matrix products and convolutions"),
    ],
)
def test_what_attains_a_share_of_the_limit_is_named(kinds, words):
    parts = tuple(ComputePart(kind, 1, 0.5) for kind in kinds)
    summary = ComputeSummary(2, 1, 1, parts, (), (), None, 0.5, None, "")
    assert summary.product_names() == words
