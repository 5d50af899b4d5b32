"""Evaluations and checkpoints lead the verdict where they take more than a fix in the steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.step_records import MS, step_records, write_run

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.evidence.subject import Subject
from stepscope.advice.finding import Severity
from stepscope.advice.rules.steps.outside import find_work_outside_steps
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.record.summary import summarise_steps
from stepscope.opening.reader import open_run
from stepscope.report.findings import saving, short_saving
from stepscope.run.step_record import StepRecord

STEPS = 120
PHASES = {"forward": 6.0, "backward": 3.0}


def training(
    outside: dict[int, tuple[str, float]], *, steps: int = STEPS, waits_ms: float = 0
) -> list[StepRecord]:
    """Steps of 10 ms, with work of a kind and a length in ms before some of them."""
    records: list[StepRecord] = []
    for record in step_records([10.0] * steps, waits_ms, phases_ms=PHASES):
        if record.step in outside:
            kind, length_ms = outside[record.step]
            records.append(StepRecord(record.step, 0, round(length_ms * MS), kind=kind))
        records.append(record)
    return records


def every(distance: int, kind: str, length_ms: float) -> dict[int, tuple[str, float]]:
    return dict.fromkeys(range(distance, STEPS, distance), (kind, length_ms))


def judge(tmp_path, records: list[StepRecord]) -> Diagnosis:
    return diagnose(open_run(write_run(tmp_path, {0: records})))


def found_in(records: list[StepRecord]):
    return find_work_outside_steps(Subject(0, steps=summarise_steps(records)))


@pytest.mark.parametrize(
    ("outside", "waits_ms", "begins", "goes_on"),
    [
        (  # 5 evaluations of 470 ms beside 1.2 s of steps
            every(20, "evaluation", 470),
            2,
            "work-outside-steps: evaluation takes 66% of the recorded time, 5 times in 120 steps",
            "; halving it saves 33%. In the steps, input-bound: ",
        ),
        (
            every(20, "checkpoint", 125),
            0,
            "work-outside-steps: saving checkpoints takes 34% of the recorded time, 5 times in ",
            "120 steps; halving it saves 17%. In the steps, nothing stands out: ",
        ),
        (  # 1.2 s of steps, of which batches take 0.72 s, beside 0.5 s of checkpoints
            every(20, "checkpoint", 100),
            6,
            "input-bound: ",
            "Outside the steps, checkpoint takes 29% of the recorded time",
        ),
        (every(20, "evaluation", 30), 0, "nothing stands out: ", ""),
    ],
    ids=["evaluation", "checkpoint", "the step loses more", "little"],
)
def test_what_takes_most_of_the_job_leads(tmp_path, outside, waits_ms, begins, goes_on):
    diagnosis = judge(tmp_path, training(outside, waits_ms=waits_ms))
    assert diagnosis.verdict.startswith(begins), diagnosis.verdict
    assert goes_on in diagnosis.verdict
    if not begins.startswith("nothing"):
        assert diagnosis.findings[0].id == begins.partition(":")[0]


@pytest.mark.parametrize(
    ("length_ms", "severity"),
    [(10, None), (40, Severity.MEDIUM), (90, Severity.MEDIUM), (110, Severity.HIGH)],
)
def test_severity_is_that_of_the_share_it_takes(length_ms, severity):
    """5 evaluations beside 1.2 s of steps: 4, 14, 27 and 31% of the time."""
    found = found_in(training(every(20, "evaluation", length_ms)))
    assert [one.severity for one in found] == ([] if severity is None else [severity])
    for one in found:
        share = 5 * length_ms / (5 * length_ms + 1200)
        assert one.saving_of_job == pytest.approx(share / 2, rel=1e-3)
        assert one.saving_ns is None
        assert one.outside_ns == round(5 * length_ms * MS / STEPS)


def test_the_saving_is_said_of_the_job_and_not_of_the_step():
    (found,) = found_in(training(every(20, "evaluation", 470)))
    assert short_saving(found) == "saves 33% of the recorded time"
    assert saving(found) == (
        "33% of the recorded time: it is no part of the step, which stays as long"
    )
    assert found.assumption == "it is done half as often, or on half of the data"


def test_both_kinds_have_a_finding_each():
    outside = every(20, "evaluation", 100) | every(30, "checkpoint", 200)
    found = found_in(training(outside))
    assert [one.title.split(" takes ")[0] for one in found] == ["saving checkpoints", "evaluation"]


@pytest.mark.parametrize(("steps", "is_judged"), [(60, False), (STEPS, True)])
def test_what_comes_once_at_the_end_of_a_short_trial_does_not_lead(tmp_path, steps, is_judged):
    records = training({}, steps=steps)
    records.append(StepRecord(steps, 0, 2 * steps * 10 * MS, kind="checkpoint"))
    diagnosis = judge(tmp_path, records)
    (found,) = (one for one in diagnosis.findings if one.id == "work-outside-steps")
    assert f"67% of the recorded time, once in {steps} steps" in found.title
    assert found.severity is (Severity.HIGH if is_judged else Severity.LOW)
    assert (found.saving_of_job is not None) is is_judged
    assert diagnosis.verdict.startswith("work-outside-steps: ") is is_judged
    assert ("Outside the steps, checkpoint takes 67%" in diagnosis.verdict) is not is_judged


def test_a_checkpoint_that_makes_the_one_slow_step_counts(tmp_path):
    """It is left out of the step as a stall; the report names it all the same."""
    records = training({})
    slow = records[60]
    phases = slow.phases | {"saving": 800 * MS}
    records[60] = replace(slow, dur_ns=slow.dur_ns + 800 * MS, phases=phases)
    diagnosis = judge(tmp_path, records)
    assert diagnosis.verdict.startswith(
        "work-outside-steps: saving checkpoints takes 40% of the recorded time, once in 120 steps"
    )
    (stall,) = (one for one in diagnosis.findings if one.id == "stalled-step")
    assert stall.title.endswith("times as long as the others, mostly in saving")
    assert stall.advice.startswith("Save less often")


def test_the_threshold_is_the_least_share_that_is_reported():
    steps = summarise_steps(training(every(20, "evaluation", 40)))
    for least, count in ((0.1, 1), (0.2, 0)):
        limits = Thresholds().changed({"outside_steps": least})
        assert len(find_work_outside_steps(Subject(0, steps=steps, thresholds=limits))) == count


def test_each_rank_says_of_whose_time(tmp_path):
    evaluating = training(every(20, "evaluation", 470))
    diagnosis = diagnose(open_run(write_run(tmp_path, {0: training({}), 1: evaluating})))
    assert "halving it saves 33% of rank 1's time" in diagnosis.verdict
