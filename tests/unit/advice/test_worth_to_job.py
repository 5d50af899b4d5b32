"""No finding promises more than the job gains, and the late ranks are named with the reason.

What the job gains is what the same job takes less when it is simulated without the fault.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.one_step import check_diagnosis
from tests.support.planted import products
from tests.support.planted_jobs import Fault, PlantedJob
from tests.support.rank_programs import Meet, Program, run_ranks
from tests.support.ranks_that_wait import steady_step_ns, write_ranks

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Finding, Severity
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis.sentences import between_ranks

STEPS = 4


def _data_parallel(inputs_ms, slower=None):  # type: ignore[no-untyped-def]
    """Ranks that wait for input, compute, and reduce; `slower` is by rank a factor of compute."""

    def build(t: GpuTrace, rank: int) -> Program:
        t.memory(55 << 30)
        for _ in range(STEPS):
            with t.step():
                t.data_wait(ms(inputs_ms[rank]))
                products(t, 8, round(us(900) * (slower or {}).get(rank, 1)))
                t.wait_collective((yield Meet("all_reduce", 64 << 20, us(400))))
                t.sync()

    return run_ranks(build, len(inputs_ms))


def _step_ns(traces: list[GpuTrace]) -> int:
    return steady_step_ns(traces[0], 0, STEPS - 1)


def _judged(traces: list[GpuTrace], folder: Path) -> Diagnosis:
    diagnosis = diagnose(open_run(str(write_ranks(traces, folder))))
    check_diagnosis(diagnosis)
    return diagnosis


def _one(diagnosis: Diagnosis, rule: str, rank: int) -> Finding:
    (found,) = (one for one in diagnosis.findings if (one.id, one.rank) == (rule, rank))
    return found


def test_a_cause_promises_no_more_than_the_next_rank_allows(tmp_path):
    now = _data_parallel([0.03, 12, 0.03, 0.03], {2: 1.5})
    diagnosis = _judged(now, tmp_path / "job")
    first = diagnosis.findings[0]
    assert (first.id, first.rank) == ("input-bound", 1)
    gain_ns = _step_ns(now) - _step_ns(_data_parallel([0.03] * 4, {2: 1.5}))
    assert first.saving_ns == pytest.approx(gain_ns, rel=0.03)
    assert "then rank 2 limits the step: rank 1 alone has 12.0 ms less to do" in first.assumption
    assert "until rank 2 limits the step. Rank 1 comes late" in diagnosis.verdict
    assert "saves 43% of rank 1's step" in diagnosis.verdict
    assert diagnosis.shown.together_ns == pytest.approx(gain_ns, rel=0.03)


def test_a_cause_on_two_ranks_is_worth_what_both_are(tmp_path):
    now = _data_parallel([0.03, 0.03, 5, 8])
    diagnosis = _judged(now, tmp_path / "job")
    gain_ns = _step_ns(now) - _step_ns(_data_parallel([0.03] * 4))
    assert diagnosis.findings[0].saving_ns == pytest.approx(gain_ns, rel=0.03)
    assert "fixing it on ranks 2, 3 saves" in diagnosis.verdict


def test_what_keeps_a_rank_that_waits_anyway_saves_the_job_nothing(tmp_path):
    now = _data_parallel([3, 0.03, 0.03, 0.03], {2: 2})
    mended = _data_parallel([0.03] * 4, {2: 2})
    assert _step_ns(mended) == pytest.approx(_step_ns(now), rel=0.01)
    diagnosis = _judged(now, tmp_path / "job")
    assert diagnosis.verdict.startswith("late-rank: rank 2 comes late")
    finding = _one(diagnosis, "input-bound", 0)
    assert finding.saving_ns is None
    assert finding.severity is Severity.INFO
    assert "but rank 2's is not, and that limits all ranks" in finding.saving_reason


def test_a_late_rank_is_named_with_what_takes_longer_on_it(tmp_path):
    now = _data_parallel([0.03] * 6, {3: 1.3, 4: 1.3})
    diagnosis = _judged(now, tmp_path / "job")
    assert diagnosis.verdict.startswith(
        "late-rank: ranks 3, 4 come late: the others wait for them at collectives; their "
        "computation takes longer, and 'compute' takes 2.16 ms longer on them"
    )
    finding = _one(diagnosis, "late-rank", diagnosis.findings[0].rank)
    evidence = {one.label: one.value for one in finding.evidence}
    assert evidence["'compute' per step"] == "9.36 ms, 7.20 ms on the others"
    assert "compare" in finding.advice
    gain_ns = _step_ns(now) - _step_ns(_data_parallel([0.03] * 6))
    assert finding.saving_ns == pytest.approx(gain_ns, rel=0.03)
    waiting = _one(diagnosis, "rank-waiting", 0)
    assert waiting.title.endswith("mostly for ranks 3, 4")
    assert waiting.advice == (
        "See what ranks 3, 4 do before these collectives that others do not (their findings, "
        "`stepscope show idle` on their traces): input, uneven batches, Python, a slower machine."
    )


def test_waits_count_in_steps_that_all_ranks_recorded(tmp_path):
    """The recording of rank 0 ends two steps before those of the others."""
    now = _data_parallel([0.03] * 6, {1: 1.5})
    (end_ns,) = (one["ts"] + one["dur"] for one in now[0].events if one["name"] == "ProfilerStep#3")
    now[0].events = [one for one in now[0].events if one["ts"] < end_ns]
    diagnosis = _judged(now, tmp_path / "job")
    assert diagnosis.between is not None
    assert diagnosis.between.others_wait_ns == pytest.approx(ms(3.6), rel=0.02)
    assert _one(diagnosis, "late-rank", 1).saving_ns == pytest.approx(ms(3.6), rel=0.02)


def _pairs_and_groups(slow_pair: bool) -> list[GpuTrace]:
    """Eight ranks in pairs, then in groups of four, then all; the link of ranks 2, 3 is slow."""

    def build(t: GpuTrace, rank: int) -> Program:
        t.memory(55 << 30)
        pair = (rank - rank % 2, rank - rank % 2 + 1)
        pair_ns = us(300) * (8 if slow_pair and rank in (2, 3) else 1)
        line = tuple(range(rank % 2, 8, 2))
        for _ in range(STEPS):
            with t.step():
                for _ in range(2):
                    products(t, 4)
                    exchanged = yield Meet("all_reduce", 16 << 20, pair_ns, pair, f"tp{pair[0]}")
                    t.wait_collective(exchanged)
                reduced = yield Meet("reduce_scatter", 64 << 20, us(500), line, f"dp{rank % 2}")
                t.wait_collective(reduced)
                t.wait_collective((yield Meet("all_reduce", 4, us(20))))
                t.sync()

    return run_ranks(build, 8)


def test_a_slow_pair_is_named_though_most_wait_for_ranks_that_wait_for_it(tmp_path):
    now = _pairs_and_groups(slow_pair=True)
    diagnosis = _judged(now, tmp_path / "job")
    assert diagnosis.verdict.startswith("late-rank: ranks 2, 3 come late")
    assert "their transfers are slow" in diagnosis.verdict
    assert diagnosis.findings[0].advice.startswith("Look at the links between these ranks first")
    gain_ns = _step_ns(now) - _step_ns(_pairs_and_groups(slow_pair=False))
    finding = _one(diagnosis, "late-rank", 2)
    assert finding.saving_ns == pytest.approx(gain_ns, rel=0.03)
    assert between_ranks(diagnosis).startswith("100% of")


def _experts(tokens) -> list[GpuTrace]:  # type: ignore[no-untyped-def]
    """Four ranks with experts; `tokens(step, layer, rank)` is their share of the work."""

    def build(t: GpuTrace, rank: int) -> Program:
        t.memory(55 << 30)
        for step in range(STEPS):
            with t.step():
                for layer in range(4):
                    t.wait_collective((yield Meet("all_to_all", 32 << 20, us(300))))
                    products(t, 4, round(us(900) * tokens(step, layer, rank)))
                    t.wait_collective((yield Meet("all_to_all", 32 << 20, us(300))))
                t.sync()

    return run_ranks(build, 4)


def test_experts_that_are_overloaded_in_turn_are_waiting_and_no_lack_of_overlap(tmp_path):
    now = _experts(lambda step, layer, rank: 2.2 if rank == (step + layer) % 4 else 0.6)
    diagnosis = _judged(now, tmp_path / "job")
    assert diagnosis.verdict.startswith("rank-waiting")
    assert "each time for another rank" in diagnosis.verdict
    first = diagnosis.findings[0]
    gain_ns = _step_ns(now) - _step_ns(_experts(lambda step, layer, rank: 1))
    assert first.saving_ns is not None
    assert 0.8 * gain_ns <= first.saving_ns <= 1.03 * gain_ns
    assert "experts" in first.advice
    others = [one for one in diagnosis.findings if one.id != "rank-waiting"]
    assert all((one.saving_ns or 0) < first.saving_ns for one in others)
    assert "abnormal-collective" not in {one.id for one in others}
    assert between_ranks(diagnosis).startswith("no one rank is late, they take turns within each")


def test_hiding_communication_brings_nothing_where_the_host_of_another_rank_sets_the_pace(tmp_path):
    """Rank 0 is no late rank: its host keeps pace with what the others' GPUs take."""
    job = PlantedJob(ranks=3, kernels=3, transfer=900, faults=(Fault("input", (0,), 4_550),))
    now_ns, without_ns = job.step_ns(), job.step_ns(transfers=1e-6)
    assert without_ns == pytest.approx(now_ns, rel=0.01)
    diagnosis = diagnose(open_run(str(job.write(tmp_path / "job"))))
    check_diagnosis(diagnosis)
    assert not any(one.id == "late-rank" for one in diagnosis.findings)
    finding = _one(diagnosis, "exposed-communication", 1)
    assert finding.saving_ns is None
    assert "but rank 0's is not, and that limits all ranks" in finding.saving_reason


def test_communication_is_worth_what_it_is_once_the_late_rank_is_fixed(tmp_path):
    fault = Fault("input", (0,), 7_000)
    job = PlantedJob(ranks=3, kernels=3, transfer=900, faults=(fault,))
    diagnosis = diagnose(open_run(str(job.write(tmp_path / "job"))))
    check_diagnosis(diagnosis)
    assert _one(diagnosis, "late-rank", 0).saving_ns
    fixed = PlantedJob(ranks=3, kernels=3, transfer=900)
    gain_ns = fixed.step_ns() - fixed.step_ns(transfers=1e-6)
    finding = _one(diagnosis, "exposed-communication", 1)
    assert finding.saving_ns == pytest.approx(gain_ns, rel=0.03)
    assert "late ranks and abnormal collectives are fixed first" in finding.assumption


def test_slack_in_some_collectives_does_not_help_a_rank_in_others(tmp_path):
    """Rank 3 computes little and waits most of the step, but comes next to the first collective."""
    job = PlantedJob(
        ranks=4,
        style="sharded",
        kernels=3,
        transfer=60,
        reads_loss=True,
        faults=(
            Fault("more layers", (1, 2), 3),
            Fault("input", (1,), 4_000),
            Fault("python", (3,), 2_000),
        ),
    )
    gain_ns = job.step_ns() - job.step_ns(lambda fault, rank: fault.kind == "input")
    assert gain_ns == pytest.approx(ms(2), rel=0.02)
    diagnosis = diagnose(open_run(str(job.write(tmp_path / "job"))))
    check_diagnosis(diagnosis)
    late = _one(diagnosis, "late-rank", 1)
    assert late.saving_ns == pytest.approx(gain_ns, rel=0.03)
    cause = _one(diagnosis, "input-bound", 1)
    assert cause.saving_ns == pytest.approx(gain_ns, rel=0.03)
    assert "then rank 3 limits the step" in cause.assumption
    waiting = _one(diagnosis, "rank-waiting", 2)
    assert waiting.saving_ns == pytest.approx(gain_ns, rel=0.03)


def test_a_rank_that_is_late_only_where_the_window_begins_is_not_called_late(tmp_path):
    """Its host is ahead of its GPU by more than the collector takes, but for the first step."""
    job = PlantedJob(
        kernels=3,
        kernel=400,
        transfer=360,
        starts_idle=True,
        faults=(Fault("collector", (1,), 10_000),),
    )
    assert job.step_ns() == pytest.approx(PlantedJob(kernels=3, kernel=400, transfer=360).step_ns())
    diagnosis = diagnose(open_run(str(job.write(tmp_path / "job"))))
    check_diagnosis(diagnosis)
    assert not any(one.id == "late-rank" for one in diagnosis.findings)
    waiting = _one(diagnosis, "rank-waiting", 0)
    assert waiting.saving_ns is None
    assert waiting.saving_reason == (
        "rank 1 came late only because its host was less far ahead when the window began: in the "
        "steady state that costs little"
    )


def test_communication_on_the_late_rank_brings_nothing_where_the_host_sets_the_pace_after(tmp_path):
    """Rank 0 computes for 10.8 ms and reduces for 1 ms; later the host's 9 ms limit all ranks."""

    def build(t: GpuTrace, rank: int) -> Program:
        for _ in range(STEPS):
            with t.step():
                t.python(ms(9))
                products(t, 8, us(1350 if rank == 0 else 900))
                t.wait_collective((yield Meet("all_reduce", 64 << 20, ms(1))))

    diagnosis = _judged(run_ranks(build, 3), tmp_path / "job")
    assert _one(diagnosis, "late-rank", 0).saving_ns
    promised = [one for one in diagnosis.findings if one.id == "exposed-communication"]
    assert not any(one.saving_ns for one in promised)
