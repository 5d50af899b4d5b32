"""Which rank is to blame: causes on the late rank come before waiting on the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.one_step import check_diagnosis
from tests.support.planted import dump, products
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import Diagnosis, diagnose
from stepscope.advice.finding import Severity
from stepscope.opening.reader import open_run
from stepscope.report.diagnosis.sentences import between_ranks


def _judge(path: Path) -> Diagnosis:
    diagnosis = diagnose(open_run(str(path)))
    check_diagnosis(diagnosis)
    return diagnosis


def _gpu_ranks(folder: Path, late_ns: int, *, by_input: bool) -> Diagnosis:
    """Three ranks, whose second is kept for a while before the all-reduce of every step."""
    for rank in range(3):
        t = GpuTrace(world_size=3, rank=rank, device=rank)
        for _ in range(6):
            with t.step():
                if rank == 1 and by_input:
                    t.data_wait(late_ns)
                products(t, 4)
                t.sync()
                if rank == 1 and not by_input:
                    t.python(late_ns)
                length = us(500) + (0 if rank == 1 else late_ns)
                t.wait_collective(t.collective("all_reduce", 64 << 20, length))
                t.sync()
        (folder / f"rank{rank}.pt.trace.json").write_bytes(dump(t))
    return _judge(folder)


@pytest.mark.parametrize(
    ("by_input", "cause"), [(True, "input-bound"), (False, "cpu-bound-python")]
)
def test_what_keeps_the_late_rank_is_the_verdict(tmp_path, by_input, cause):
    diagnosis = _gpu_ranks(tmp_path, ms(30), by_input=by_input)
    first, second = diagnosis.findings[:2]
    assert (first.id, first.rank) == (cause, 1)
    assert (second.id, second.rank) == ("late-rank", 1)
    assert {one.label: one.value for one in second.evidence}["who comes late"] == "rank 1"
    assert diagnosis.verdict.startswith(cause)
    assert "Rank 1 comes late" in diagnosis.verdict
    symptoms = [one for one in diagnosis.findings if one.rank == 0 and one.id == "rank-waiting"]
    assert symptoms
    for one in symptoms:
        assert one.severity is Severity.LOW
        assert "rank 1 comes late" in one.assumption
    last = [one.id for one in diagnosis.findings[-len(symptoms) :]]
    assert set(last) <= {"rank-waiting", "exposed-communication", "poor-overlap"}


def test_communication_that_nobody_is_late_for_stays_the_verdict(tmp_path):
    for rank in range(2):
        t = GpuTrace(world_size=2, rank=rank, device=rank)
        for _ in range(6):
            with t.step():
                products(t, 4)
                t.wait_collective(t.collective("all_reduce", 512 << 20, ms(20)))
                t.sync()
        (tmp_path / f"rank{rank}.pt.trace.json").write_bytes(dump(t))
    diagnosis = _judge(tmp_path)
    assert diagnosis.verdict.startswith("exposed-communication")
    assert "late-rank" not in {one.id for one in diagnosis.findings}


def _two_pairs(folder: Path, slow_ms: int) -> Diagnosis:
    """Ranks reduce in pairs, then all together; the link of one pair may be slow."""
    folder.mkdir()
    for rank in range(4):
        t = GpuTrace(world_size=4, rank=rank, device=rank)
        own = [rank - rank % 2, rank - rank % 2 + 1]
        pair = ms(slow_ms if rank > 1 else 1)
        for _ in range(6):
            with t.step():
                for _ in range(4):
                    products(t, 4)
                    reduced = t.collective(
                        "all_reduce", 64 << 20, pair, group_name=str(own[0]), group_ranks=own
                    )
                    t.wait_collective(reduced)
                waiting = 4 * (ms(slow_ms) - pair)
                t.wait_collective(t.collective("all_reduce", 1 << 20, ms(1) + waiting))
                t.sync()
        (folder / f"rank{rank}.pt.trace.json").write_bytes(dump(t))
    return _judge(folder)


def test_a_slow_link_is_the_cause_of_the_ranks_it_makes_late(tmp_path):
    diagnosis = _two_pairs(tmp_path / "slow", 6)
    assert diagnosis.verdict.startswith("late-rank: ranks 2, 3 come late")
    assert "their transfers are slow" in diagnosis.verdict
    first = diagnosis.findings[0]
    assert (first.id, first.rank) == ("late-rank", 2)
    assert first.advice.startswith("Look at the links between these ranks first")
    (late_rank,) = (one for one in diagnosis.findings if one.id == "late-rank")
    fast_ns = _two_pairs(tmp_path / "fast", 1).shown.step_ns
    assert "fixing it saves 51% of rank 2's step" in diagnosis.verdict
    assert late_rank.predicted_step_ns == pytest.approx(fast_ns, rel=0.02)
    assert between_ranks(diagnosis) == (
        "100% of all waiting in collectives is for ranks 2, 3; "
        "waiting costs the others 20.0 ms per step on average"
    )
    others = [
        one for one in diagnosis.findings if one.id == "exposed-communication" and one.rank < 2
    ]
    assert not [one for one in others if "Look at the links" in one.advice]


def test_a_slow_link_comes_before_what_hiding_all_of_its_communication_would_save(tmp_path):
    diagnosis = _two_pairs(tmp_path / "slow", 3)
    first = diagnosis.findings[0]
    assert (first.id, first.rank) == ("late-rank", 2)
    assert diagnosis.verdict.startswith("late-rank: ranks 2, 3 come late")
    (hidden,) = (
        one for one in diagnosis.findings if one.id == "exposed-communication" and one.rank == 2
    )
    assert first.saving_ns < hidden.saving_ns < 2 * first.saving_ns
    (wait,) = (one for one in first.evidence if one.label == "what another rank waits, per step")
    assert wait.value == 8_000_000
    assert "waiting costs the others 8.00 ms per step" in between_ranks(diagnosis)


def test_step_records_alone_name_the_late_ranks_input(tmp_path):
    """Rank 1 waits 35 of 42 ms for its batch; rank 0 spends the same time in its backward."""
    late = step_records([42.0] * 30, waits_ms=35.0, phases_ms={"forward": 2.0, "backward": 4.0})
    waits = step_records([42.0] * 30, waits_ms=0.1, phases_ms={"forward": 2.0, "backward": 39.0})
    diagnosis = _judge(write_run(tmp_path, {0: waits, 1: late, 2: waits}))
    assert diagnosis.skew is not None
    assert diagnosis.skew.late == (1,)
    assert (diagnosis.findings[0].id, diagnosis.findings[0].rank) == ("input-bound", 1)
    assert "fixing it saves 83% of rank 1's step. Rank 1 comes late" in diagnosis.verdict
    (late_rank,) = (one for one in diagnosis.findings if one.id == "late-rank")
    assert late_rank.saving_ns is not None
    assert late_rank.predicted_step_ns == 42_000_000 - late_rank.saving_ns


def test_of_two_ranks_the_verdict_begins_with_the_one_that_comes_last(tmp_path):
    """Of two ranks neither is accused, and no finding says what rank 1 does for longer."""
    short = step_records([60.0] * 30, phases_ms={"forward": 10.0, "backward": 50.0}, cpu_ms=25.0)
    longer = step_records([60.0] * 30, phases_ms={"forward": 40.0, "backward": 20.0}, cpu_ms=60.0)
    diagnosis = _judge(write_run(tmp_path, {0: short, 1: longer}))
    assert "late-rank" not in {one.id for one in diagnosis.findings}
    assert diagnosis.verdict == (
        "rank 1 comes late, and rank 0 waits 35 ms per step for it: its forward takes longer; "
        "without that the step takes 58% less (late-rank)"
    )
