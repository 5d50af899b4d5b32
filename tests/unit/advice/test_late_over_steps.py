"""What a report says of ranks that come late in every Nth step, or later from step to step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.one_step import check_diagnosis
from tests.support.planted import products
from tests.support.ranks_that_wait import meet, steady_step_ns, write_ranks
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding, Severity
from stepscope.opening.reader import open_run

RANKS = 4
LATE = 2


def _job(steps: int, late_ms: Callable[[int], float], *, on_gpu: bool = False) -> list[GpuTrace]:
    """Ranks that meet twice a step; one of them first does something else for a while."""

    def build(rank: int, length: Callable[[int], int]) -> GpuTrace:
        t = GpuTrace(world_size=RANKS, rank=rank, device=rank)
        for step in range(steps):
            with t.step():
                products(t, 4)
                t.sync()
                own_ns = ms(late_ms(step)) if rank == LATE else 0
                if own_ns and on_gpu:
                    products(t, 1, own_ns)
                    t.sync()
                elif own_ns:
                    t.python(own_ns)
                for _ in range(2):
                    products(t, 2)
                    t.wait_collective(t.collective("all_reduce", 64 << 20, length))
                    t.sync()
        return t

    return meet(build, RANKS, us(700))


def _judged(folder: Path, traces: list[GpuTrace]) -> Diagnosis:
    diagnosis = diagnose(open_run(str(write_ranks(traces, folder / "job"))))
    check_diagnosis(diagnosis)
    return diagnosis


def _late(diagnosis: Diagnosis) -> Finding:
    (finding,) = (one for one in diagnosis.findings if one.id == "late-rank")
    assert finding.rank == LATE
    return finding


def _seen(finding: Finding) -> dict[str, object]:
    return {one.label: one.value for one in finding.evidence}


def _promises_what_the_job_gains(finding: Finding, steps: int) -> None:
    healthy = _job(steps, lambda _: 0)
    assert finding.predicted_step_ns == pytest.approx(
        steady_step_ns(healthy[0], 0, steps - 1), rel=0.02
    )


@pytest.mark.parametrize("on_gpu", [False, True])
def test_every_third_step(tmp_path, on_gpu):
    traces = _job(18, lambda step: 12 if step % 3 == 1 else 0, on_gpu=on_gpu)
    diagnosis = _judged(tmp_path, traces)
    finding = _late(diagnosis)
    assert finding.title.startswith(
        "rank 2 comes late in every 3rd step: the others wait for it at collectives"
    )
    assert finding.steps == (1, 4, 7, 10, 13, 16)
    assert str(_seen(finding)["the others wait"]).startswith(
        "in every 3rd step (1, 4, 7, 10, 13, …)"
    )
    assert "every 3 steps" in finding.advice
    _promises_what_the_job_gains(finding, 18)
    # What the others see of it is said to come from it.
    odd = [one for one in diagnosis.findings if one.id == "abnormal-collective"]
    assert odd
    for one in odd:
        assert one.severity is Severity.LOW
        assert "rank 2 comes late in every 3rd step" in one.assumption
    last = {one.id for one in diagnosis.findings[-len(odd) :]}
    assert last <= {"abnormal-collective", "rank-waiting", "exposed-communication"}


def test_few_steps_are_named_without_a_distance(tmp_path):
    finding = _late(_judged(tmp_path, _job(9, lambda step: 12 if step % 3 == 1 else 0)))
    assert finding.title.startswith("rank 2 comes late in 3 of 9 steps: ")
    assert _seen(finding)["the others wait"] == "in 3 of 9 steps: 1, 4, 7"


@pytest.mark.parametrize("on_gpu", [False, True])
def test_later_from_step_to_step(tmp_path, on_gpu):
    diagnosis = _judged(tmp_path, _job(12, lambda step: 1 + 0.6 * step, on_gpu=on_gpu))
    finding = _late(diagnosis)
    assert finding.title.startswith("rank 2 comes later from step to step: ")
    assert _seen(finding)["the wait grows"] == (
        "by 600 µs a step: 1.60 ms in the first steps, 7.00 ms in the last"
        if not on_gpu
        else "by 600 µs a step: 1.61 ms in the first steps, 7.01 ms in the last"
    )
    assert "grows on this rank alone" in finding.advice
    _promises_what_the_job_gains(finding, 12)


def test_as_late_in_each_step(tmp_path):
    finding = _late(_judged(tmp_path, _job(12, lambda _: 4)))
    assert finding.title.startswith("rank 2 comes late: the others wait for it at collectives")
    assert not {"the wait grows", "the others wait"} & set(_seen(finding))
    assert finding.steps == ()


def test_no_late_rank_at_all(tmp_path):
    diagnosis = _judged(tmp_path, _job(18, lambda _: 0))
    assert "late-rank" not in {one.id for one in diagnosis.findings}


def test_a_record_of_every_third_step_names_the_rank_and_not_who_waits(tmp_path):
    """Rank 1 saves for 60 ms in every third step; rank 0 spends these in its backward."""
    saves = [step % 3 == 1 for step in range(60)]
    durations = [40.0 + 60 * is_saving for is_saving in saves]
    late = step_records(
        durations,
        phases_ms={"forward": [20.0 + 60 * one for one in saves], "backward": 18.0},
    )
    waits = step_records(
        durations,
        phases_ms={"forward": 20.0, "backward": [18.0 + 60 * one for one in saves]},
    )
    diagnosis = diagnose(open_run(str(write_run(tmp_path, {0: waits, 1: late, 2: waits}))))
    check_diagnosis(diagnosis)
    assert diagnosis.skew is not None
    assert diagnosis.skew.late == (1,)
    first = diagnosis.findings[0]
    assert (first.id, first.rank) in {("slow-phase", 1), ("uneven-steps", 1), ("late-rank", 1)}
    assert "Rank 1 comes late in every 3rd step" in diagnosis.verdict
    (finding,) = (one for one in diagnosis.findings if one.id == "late-rank")
    assert finding.title.startswith("rank 1 comes last in every 3rd step, and the others wait")
    assert finding.saving_ns == pytest.approx(ms(20), rel=0.05)
    assert finding.predicted_step_ns == pytest.approx(ms(40), rel=0.05)
    for one in diagnosis.findings:
        if one.rank != 1 and one.id in {"slow-phase", "uneven-steps"}:
            assert one.severity is Severity.LOW
            assert "rank 1 comes late in every 3rd step" in one.assumption


def test_a_phase_in_which_all_save_is_no_wait(tmp_path):
    """All save in every third step, and rank 1 for longer: what the others save is their own."""
    saves = [step % 3 == 1 for step in range(60)]
    durations = [40.0 + 60 * one for one in saves]

    def records(save_ms: float) -> list:
        own = [save_ms * one for one in saves]
        rest = [18.0 + (60 - save_ms) * one for one in saves]
        return step_records(durations, phases_ms={"forward": 20.0, "save": own, "backward": rest})

    run = write_run(tmp_path, {0: records(20), 1: records(60), 2: records(20)})
    diagnosis = diagnose(open_run(str(run)))
    check_diagnosis(diagnosis)
    (finding,) = (one for one in diagnosis.findings if one.id == "late-rank")
    assert (finding.rank, finding.title[:36]) == (1, "rank 1 comes last in every 3rd step,")
    assert finding.saving_ns == pytest.approx(ms(40) / 3, rel=0.05)


@pytest.mark.parametrize(("cpu_ms", "saves"), [(2, False), (60, True)], ids=["asleep", "working"])
def test_too_few_steps_to_compare_name_no_wait_as_a_slow_phase(tmp_path, cpu_ms, saves):
    """Ranks that accumulate meet in every fifth step: rank 0 waits for rank 1 in its backward."""
    meets = [step % 5 == 1 for step in range(13)]
    waits = step_records(
        [3.0 + 100 * one for one in meets],
        cpu_ms=cpu_ms,
        queued_ms=0,
        phases_ms={"forward": 1.0, "backward": [1.0 + 100 * one for one in meets]},
    )
    late = step_records([23.0] * 13, phases_ms={"forward": 1.0, "backward": 1.0})
    diagnosis = diagnose(open_run(str(write_run(tmp_path, {0: waits, 1: late}))))
    assert diagnosis.skew is None
    (finding,) = (one for one in diagnosis.findings if one.id == "slow-phase")
    assert finding.rank == 0
    assert (finding.saving_ns is not None) == saves
    assert ("other ranks" in finding.saving_reason) != saves
    assert ("the other ranks" in finding.advice) != saves
