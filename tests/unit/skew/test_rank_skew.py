"""Which rank comes late: rendezvous computed by hand, and what must not be taken for one."""

from __future__ import annotations

import dataclasses
import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.support.rendered import print_blocks
from tests.support.step_records import MS, write_run

from stepscope.advice.diagnosis import diagnose
from stepscope.analysis.record.live import LiveState, look_at
from stepscope.capture.ending import late_ranks
from stepscope.opening.reader import open_run
from stepscope.report.live import blocks_of
from stepscope.run.layout import RunLayout
from stepscope.run.manifest import RankManifest, read_rank, write_record
from stepscope.run.step_record import StepRecord, read_last_steps
from stepscope.skew.rank_skew import (
    BACKWARD,
    COMMUNICATION,
    FORWARD,
    OFF_CPU,
    STEP_BORDERS,
    RankSteps,
    last_ranks,
    rank_skew,
    rank_steps,
)

START_NS = 1_700_000_000_000_000_000


def job(before_ms, after_ms=(), *, steps=40, meet="communication", exchange_ms=2.0, jitter_ms=0.0):
    """Ranks that meet once in each step, played through: everybody goes on when the last has come.

    Args:
        before_ms: What each rank does in each step before they meet: a number or one a step.
        after_ms: What it does afterwards.
        meet: Name of the phase in which they wait.
    """
    count = len(before_ms)
    after_ms = after_ms or [1.0] * count
    noise = random.Random(4)
    clock = [0.0] * count
    records = [[] for _ in range(count)]
    for step in range(steps):
        begun = list(clock)
        came = [
            clock[rank]
            + MS
            * (before_ms[rank] if isinstance(before_ms[rank], float) else before_ms[rank][step])
            + MS * jitter_ms * noise.random()
            for rank in range(count)
        ]
        met = max(came) + MS * exchange_ms
        for rank in range(count):
            clock[rank] = met + MS * after_ms[rank]
            phases = {"forward": round(came[rank] - begun[rank]), meet: round(met - came[rank])}
            records[rank].append(
                StepRecord(
                    step,
                    START_NS + round(begun[rank]),
                    round(clock[rank] - begun[rank]),
                    phases=phases if meet else {},
                )
            )
    return [RankSteps(rank, records[rank], 0) for rank in range(count)]


@pytest.mark.parametrize("meet", [COMMUNICATION, BACKWARD, "backward/communication"])
def test_who_waits_least_comes_last(meet):
    skew = rank_skew(job([10.0, 16.0, 12.0, 10.0], meet=meet))
    assert skew.basis == meet.rpartition("/")[2]
    assert skew.late == (1,)
    assert {wait.rank: wait.wait_ns for wait in skew.ranks} == {
        0: 6 * MS, 1: 0, 2: 4 * MS, 3: 6 * MS,
    }  # fmt: skip
    assert (skew.wait_ns, skew.saving_ns) == (6 * MS, 4 * MS)
    assert skew.step_ns == 19 * MS
    assert skew.steps == 35
    assert skew.last_share == 1.0
    assert skew.is_notable
    assert skew.accusation() == (
        "rank 1 makes the others wait: its forward takes longer. Without that a step would take "
        "4.00 ms less, 21% of 19.0 ms"
    )


def test_the_saving_is_what_the_step_is_shorter_by():
    slow = job([10.0, 16.0, 12.0])
    fixed = job([10.0, 12.0, 12.0])
    skew = rank_skew(slow)
    assert skew.step_ns - skew.saving_ns == fixed[0].records[20].dur_ns


@settings(max_examples=2 * settings.default.max_examples // 5, deadline=None)
@given(st.lists(st.floats(1, 50), min_size=2, max_size=6), st.integers(0, 3))
def test_waits_are_those_of_the_rendezvous(before, after):
    ranks = job(before, [float(after)] * len(before))
    skew = rank_skew(ranks)
    for wait in skew.ranks:
        assert wait.wait_ns == pytest.approx(MS * (max(before) - before[wait.rank]), abs=2000)
    assert skew.wait_ns >= skew.saving_ns >= 0
    assert sum(wait.last_steps for wait in skew.ranks) == skew.steps
    assert before[skew.late[0]] == max(before)


def test_several_late_ranks_are_named_together():
    skew = rank_skew(job([10.0, 10.0, 10.0, 10.0, 10.0, 20.0, 19.5, 10.0]))
    assert skew.late == (5, 6)
    assert skew.wait_ns == 10 * MS
    assert skew.accusation().startswith("ranks 5, 6 make the others wait: their forward takes")


def test_noise_alone_makes_no_rank_late():
    skew = rank_skew(job([10.0] * 8, steps=300, jitter_ms=4.0))
    assert not skew.is_notable
    assert skew.chance > 0.05


def test_one_long_pause_does_not_speak_for_all_steps():
    pauses = [10.0] * 40
    pauses[20] = 5000.0
    skew = rank_skew(job([10.0, pauses, 10.0]))
    assert skew.wait_ns == 0
    assert not skew.is_notable


def test_a_late_rank_shows_through_noise():
    skew = rank_skew(job([10.0, 10.0, 14.0, 10.0], steps=300, jitter_ms=4.0))
    assert skew.late == (2,)
    assert skew.is_notable
    assert skew.wait_ns == pytest.approx(4 * MS, rel=0.15)


def test_without_phases_the_borders_tell_who_is_late_at_them():
    # Rank 2 logs after each step; the others wait for it in the next.
    ranks = job([10.0] * 4, [1.0, 1.0, 6.0, 1.0], meet="")
    skew = rank_skew(ranks)
    assert skew.basis == STEP_BORDERS
    assert skew.late == (2,)
    assert skew.wait_ns == 5 * MS


def test_work_in_the_phase_that_waits_shows_in_the_time_off_the_cpu():
    """A rank that computes longer in `backward` waits less there, and the phase is as long."""
    ranks = job([10.0, 16.0, 10.0, 10.0], jitter_ms=0.5, meet="")
    seen = []
    for rank in ranks:
        records = []
        for one in rank.records:
            busy_ns = (16 if rank.rank == 1 else 10) * MS + MS
            phases = {"forward": 0, BACKWARD: one.dur_ns - MS}
            records.append(dataclasses.replace(one, cpu_ns=busy_ns, queued_ns=0, phases=phases))
        seen.append(dataclasses.replace(rank, records=records))
    skew = rank_skew(seen)
    assert (skew.basis, skew.late, skew.is_notable) == (OFF_CPU, (1,), True)
    assert skew.saving_ns == pytest.approx(6 * MS, rel=0.1)


def off_cpu(ranks, own_ms, input_ms):
    """With what each thread runs itself, all of it in backward beside what comes before."""
    seen = []
    for rank, own, waits in zip(ranks, own_ms, input_ms, strict=True):
        records = []
        for one in rank.records:
            phases = {BACKWARD: one.dur_ns - round((waits + 1) * MS), FORWARD: 0}
            records.append(
                dataclasses.replace(
                    one, cpu_ns=round(own * MS), data_wait_ns=round(waits * MS), phases=phases
                )
            )
        seen.append(dataclasses.replace(rank, records=records))
    return seen


def test_where_another_rank_pauses_unseen_an_earlier_batch_saves_nothing():
    """Rank 2 pauses in every fourth step where they meet, longer than rank 1 waits for input."""
    pauses = [30.0 if step % 4 == 3 else 10.0 for step in range(80)]
    noisy = [10.0 + 0.1 * (step % 3) for step in range(80)]
    slow = job([noisy, [one + 6 for one in noisy], pauses, noisy], steps=80, meet="")
    fixed = job([noisy, noisy, pauses, noisy], steps=80, meet="")
    skew = rank_skew(off_cpu(slow, [11.0] * 4, [0.0, 6.0, 0.0, 0.0]))
    assert (skew.basis, skew.late, skew.cause) == (OFF_CPU, (1,), "it waits for its input")
    true_ns = sum(
        slow[0].records[step].dur_ns - fixed[0].records[step].dur_ns for step in range(80)
    )
    assert skew.saving_ns == pytest.approx(true_ns / 80, rel=0.05)


def test_a_pause_beside_all_phases_is_late_though_the_threads_run_unevenly():
    """Rank 1 saves for 12 ms in every fourth step; forward and what waits run unevenly."""
    noise = random.Random(5)
    paces = [[10 + 3 * noise.random() for _ in range(120)] for _ in range(4)]
    saves = [12.0 if step % 4 == 3 else 0.0 for step in range(120)]
    come = [[*paces[0]], [a + b for a, b in zip(paces[1], saves, strict=True)], *paces[2:]]
    slow, fixed = job(come, steps=120, meet=BACKWARD), job(paces, steps=120, meet=BACKWARD)
    seen = []
    for rank, own in zip(slow, paces, strict=True):
        records = [
            dataclasses.replace(
                one,
                cpu_ns=round((own[at] + 1 + 4 * noise.random()) * MS),
                phases={**one.phases, FORWARD: round(own[at] * MS)},
            )
            for at, one in enumerate(rank.records)
        ]
        seen.append(dataclasses.replace(rank, records=records))
    skew = rank_skew(seen)
    assert skew.late == (1,)
    assert skew.course.text == "in every 4th step"
    saved = [a.dur_ns - b.dur_ns for a, b in zip(slow[0].records, fixed[0].records, strict=True)]
    assert skew.saving_ns == pytest.approx(sum(saved) / len(saved), rel=0.1)


def test_time_in_which_others_have_the_cpu_is_no_wait_for_ranks():
    ranks = job([10.0, 10.0, 10.0, 10.0], jitter_ms=0.5, meet="")
    seen = []
    for rank in ranks:
        # Ranks 1 to 3 are ready to run for 4 ms in which others have the CPUs.
        cpu_ns, queued_ns = (10, 0) if rank.rank == 0 else (6, 4)
        records = [
            dataclasses.replace(one, cpu_ns=cpu_ns * MS, queued_ns=queued_ns * MS)
            for one in rank.records
        ]
        seen.append(dataclasses.replace(rank, records=records))
    found = rank_skew(seen)
    assert found is None or not found.is_notable


def test_the_wait_for_input_counts_before_they_meet():
    ranks = job([10.0, 18.0], meet="")
    waits = [0, 8 * MS]
    ranks = [
        dataclasses.replace(
            rank,
            records=[dataclasses.replace(r, data_wait_ns=waits[rank.rank]) for r in rank.records],
        )
        for rank in ranks
    ]
    skew = rank_skew(ranks)
    assert (skew.late, skew.wait_ns) == ((1,), 8 * MS)


def shifted(rank, by_ns, **clock):
    records = [dataclasses.replace(r, start_ns=r.start_ns + by_ns) for r in rank.records]
    return dataclasses.replace(rank, records=records, **clock)


def test_clocks_are_brought_together_and_their_error_bounds_the_claim():
    first, second = job([10.0, 10.0], [1.0, 5.0], meet="")
    off = shifted(second, 3_000_000_000, clock_offset_ns=-3_000_000_000, clock_error_ns=MS)
    skew = rank_skew([first, off])
    assert (skew.late, skew.wait_ns, skew.error_ns) == ((1,), 4 * MS, MS)
    assert skew.is_notable
    assert "would take 4.00 ms less" in skew.accusation()
    unsure = dataclasses.replace(off, clock_error_ns=5 * MS)
    assert not rank_skew([first, unsure]).is_notable
    unknown = dataclasses.replace(second, clock_offset_ns=None)
    assert rank_skew([first, unknown]) is None


def test_phases_need_no_clock():
    ranks = [dataclasses.replace(rank, clock_offset_ns=None) for rank in job([10.0, 16.0])]
    assert rank_skew(ranks).late == (1,)


def on_device(*spent_ms):
    """Ranks whose hosts run ahead of their devices, the last one by 8 ms less than the others."""
    ranks = []
    for rank, spent in enumerate(spent_ms):
        is_last = rank == len(spent_ms) - 1
        records = [
            StepRecord(
                step,
                START_NS + (20 * step + 8 * is_last) * MS,
                20 * MS,
                phases={"backward": (1 if is_last else 5) * MS},
                device_ns=20 * MS,
                device_phases={} if spent is None or step == 12 else {"backward": spent * MS},
            )
            for step in range(30)
        ]
        ranks.append(RankSteps(rank, records, 0))
    return ranks


def test_on_a_gpu_the_devices_times_count():
    skew = rank_skew(on_device(9, 3, 9))
    assert (skew.basis, skew.is_device, skew.late, skew.wait_ns) == (BACKWARD, True, (1,), 6 * MS)
    assert skew.steps == 24  # without the one that the device told too late


def test_on_a_gpu_the_host_tells_nothing():
    assert rank_skew(on_device(None, None, None)) is None
    assert rank_skew(on_device(9, 9, 9)).wait_ns == 0


def test_ranks_that_do_not_meet_have_no_skew():
    free = [
        RankSteps(
            rank,
            [StepRecord(step, START_NS + each * step, each) for step in range(50)],
            0,
        )
        for rank, each in enumerate((10 * MS, 14 * MS))
    ]
    assert rank_skew(free) is None


def test_steps_that_are_counted_differently_are_not_compared_at_their_borders():
    ranks = job([10.0, 10.0], meet="")
    late = [dataclasses.replace(r, step=r.step - 3) for r in ranks[1].records[3:]]
    assert rank_skew([ranks[0], RankSteps(1, late, 0)]) is None


def test_stages_of_a_pipeline_wait_by_design():
    ranks = [dataclasses.replace(rank, stage=rank.rank) for rank in job([10.0, 16.0])]
    assert rank_skew(ranks) is None
    assert rank_skew([dataclasses.replace(rank, stage=1) for rank in ranks]) is not None


def test_disturbed_steps_are_left_out():
    ranks = job([10.0, 16.0])
    records = [
        dataclasses.replace(r, window=0 if r.step in {20, 21} else None,
                            kind="evaluation" if r.step == 30 else "train")
        for r in ranks[0].records
    ]  # fmt: skip
    # 20 to 22 for the window and the step after it, 30 for the evaluation, five at the start.
    assert rank_skew([RankSteps(0, records, 0), ranks[1]]).steps == 40 - 5 - 3 - 1


def test_too_little_to_compare_gives_nothing():
    assert rank_skew(job([10.0])) is None
    assert rank_skew(job([10.0, 16.0], steps=14)) is None
    assert rank_skew([RankSteps(0, [], 0), RankSteps(1, [], 0)]) is None


def test_long_records_are_sampled_evenly():
    skew = rank_skew(job([10.0, 16.0], steps=5000))
    assert (skew.steps, skew.wait_ns) == (2000, 6 * MS)


def test_processes_of_one_machine_have_one_clock():
    def manifest(rank, host, **more):
        return RankManifest(rank, world_size=3, host=host, **more)

    found = rank_steps(
        [
            (manifest(0, "a"), []),
            (manifest(1, "a", clock_offset_ns=17, clock_error_ns=90), []),
            (manifest(2, "b", clock_offset_ns=500, clock_error_ns=40), []),
            (manifest(3, "b"), []),
            (manifest(4, "c", coordinates={"PP": 2}), []),
        ]
    )
    clocks = [(rank.clock_offset_ns, rank.clock_error_ns, rank.stage) for rank in found]
    assert clocks == [(0, 0, None), (0, 0, None), (500, 40, None), (500, 40, None), (None, 0, 2)]


# -- in a run --------------------------------------------------------------------------------------


def write(tmp_path, ranks, name="run"):
    root = write_run(tmp_path, {rank.rank: list(rank.records) for rank in ranks}, name)
    for rank in ranks:
        path = RunLayout(root).rank(rank.rank).manifest
        write_record(path, dataclasses.replace(read_rank(path), host="here"))
    return root


def test_the_report_has_it_without_any_trace(tmp_path):
    root = write(tmp_path, job([10.0, 10.0, 20.0], steps=60))
    diagnosis = diagnose(open_run(root))
    (finding,) = [finding for finding in diagnosis.findings if finding.id == "late-rank"]
    assert (finding.rank, finding.saving_ns) == (2, 10 * MS)
    assert finding.predicted_step_ns == 13 * MS
    assert diagnosis.verdict == (
        "late-rank: rank 2 comes last in 100% of the steps, and the others wait, and 'forward' "
        "takes 10.0 ms longer on it; fixing it saves 43% of rank 2's step"
    )


def test_a_run_that_goes_on_is_judged_by_its_last_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("stepscope.skew.rank_skew._READING_S", 1e9)
    root = write(tmp_path, job([10.0, 16.0], steps=400))
    skew = rank_skew(last_ranks(RunLayout(root)))
    assert (skew.late, skew.steps) == ((1,), 200)
    # What cannot be read, and a rank that is far behind, are no reason to fail.
    (root / "rank00007").mkdir()
    assert rank_skew(last_ranks(RunLayout(root))).late == (1,)


def test_it_is_said_live_and_at_the_end(tmp_path):
    def said_of(path):
        view = look_at(path)
        out = io.StringIO()
        print_blocks(blocks_of(LiveState(view, (), str(path))), Console(file=out, width=160))
        return out.getvalue(), late_ranks(RunLayout(path), 4)

    live, verdict = said_of(write(tmp_path, job([10.0, 10.0, 35.0, 10.0])))
    words = "rank 2 makes the others wait: its forward takes longer. Without that a step would take"
    assert words in live
    assert words in verdict
    live, verdict = said_of(write(tmp_path, job([10.0] * 4, jitter_ms=1.0), "healthy"))
    assert "make" not in live
    assert verdict == ""
    # Of two ranks nobody knows which is as it should be.
    live, verdict = said_of(write(tmp_path, job([10.0, 35.0]), "two"))
    assert "make" not in live
    assert verdict == ""


def test_last_steps_are_read_from_the_end(tmp_path):
    root = write(tmp_path, job([10.0, 16.0], steps=3000))
    path = RunLayout(root).rank(1).steps
    assert [record.step for record in read_last_steps(path, 50)] == list(range(2950, 3000))
    with path.open("ab") as file:
        file.write(b'{"step": 3000, "sta')
    assert [record.step for record in read_last_steps(path, 50)] == list(range(2950, 3000))
    assert read_last_steps(tmp_path / "none", 50) == []
    path.write_bytes(b"")
    assert read_last_steps(path, 50) == []


def _every_third(rest_ms, steps=60, more_ms=30.0):
    return [rest_ms + (more_ms if step % 3 == 1 else 0.0) for step in range(steps)]


@pytest.mark.parametrize("meet", [COMMUNICATION, BACKWARD])
@pytest.mark.parametrize("slow", [(2,), (1, 2)])
def test_a_rank_that_is_late_in_every_third_step_is_late(meet, slow):
    """The saving is what the same job without it is shorter by."""
    ranks = [_every_third(10.0) if rank in slow else 10.0 for rank in range(5)]
    skew = rank_skew(job(ranks, steps=60, meet=meet, jitter_ms=1.0))
    assert skew.late[0] in slow
    assert set(skew.late) == set(slow)
    assert skew.is_notable
    assert skew.course.every == 3
    assert {step % 3 for step in skew.course.steps} == {1}
    with_it, without = (
        sum(one.dur_ns for one in job(each, steps=60, jitter_ms=1.0)[0].records[5:])
        for each in (ranks, [10.0] * 5)
    )
    gain_ns = (with_it - without) / 55
    assert skew.saving_ns == pytest.approx(gain_ns, rel=0.1)
    assert skew.step_ns == pytest.approx(with_it / 55, rel=0.15)
    assert "the others wait in every 3rd step" in skew.accusation()


def test_all_ranks_that_save_in_every_third_step_are_not_late():
    skew = rank_skew(job([_every_third(10.0)] * 4, steps=60, jitter_ms=1.0))
    assert not skew.is_notable
    assert skew.course is None


def test_a_rank_that_is_late_now_and_then_is_not_late():
    noise = random.Random(8)
    rare = [10.0 + (30.0 if noise.random() < 0.15 else 0.0) for _ in range(60)]
    skew = rank_skew(job([10.0, 10.0, rare, 10.0], steps=60, jitter_ms=1.0))
    assert not skew.is_notable
    assert skew.course is None


def test_a_late_rank_that_gets_later_is_said_to():
    rising = [12.0 + 0.5 * step for step in range(60)]
    skew = rank_skew(job([10.0, rising, 10.0], steps=60, jitter_ms=1.0))
    assert skew.late == (1,)
    assert skew.course.per_step_ns == pytest.approx(0.5 * MS, rel=0.05)
    assert "the others wait, more from step to step" in skew.accusation()
    steady = rank_skew(job([10.0, 25.0, 10.0], steps=60, jitter_ms=1.0))
    assert steady.late == (1,)
    assert steady.course is None


def test_a_rank_that_is_late_from_one_step_on_is_said_to_be():
    level = [11.0 if step < 25 else 30.0 for step in range(70)]
    skew = rank_skew(job([10.0, level, 10.0], steps=70, jitter_ms=1.0))
    assert skew.late == (1,)
    assert abs(skew.course.step - 25) <= 1
    assert "since about step 2" in skew.accusation()


def test_a_rank_that_is_always_late_and_later_in_every_third_step():
    skew = rank_skew(job([10.0, _every_third(25.0), 10.0], steps=60, jitter_ms=1.0))
    assert skew.late == (1,)
    assert skew.wait_ns == pytest.approx(25 * MS, rel=0.1)
    assert "the others wait most in every 3rd step" in skew.accusation()
