"""What a job's step would be with one thing changed, against jobs that were built that way."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, ms, us
from tests.support.pipelines import FORWARD, MILLISECOND, Job, table_of
from tests.support.ranks_that_wait import meet, steady_step_ns, write_ranks

from stepscope.commands.show import command
from stepscope.errors import UnreadableInputError, UsageError
from stepscope.fleet.job import Job as Ranks
from stepscope.fleet.job import read_job
from stepscope.fleet.rank_map import rank_map
from stepscope.fleet.stragglers import stragglers_of_job
from stepscope.fleet.what_if.changes import CHANGES
from stepscope.fleet.what_if.ranks import STEPS, WhatIfOverRanks, what_if_over_ranks
from stepscope.fleet.what_if.tables import what_if_of_operations
from stepscope.trace.paths import resolve_traces

BUCKETS, EACH = 5, 8


def built(transfer_ms, *, late_ms=0, apart=False):
    """Ranks that reduce buckets beside the backward pass, or after it; rank 2 may be slow."""

    def build(rank, length):
        t = GpuTrace(rank=rank, world_size=4, device=rank)
        for _ in range(EACH):
            with t.step():
                t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(8))
                for _ in range(BUCKETS):
                    slow = late_ms if rank == 2 else 0
                    t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(3 + slow))
                    reduced = t.collective("all_reduce", 50 << 20, length)
                    if apart:
                        t.wait_collective(reduced)
                t.wait_collective(reduced)
                t.op("aten::_fused_adamw_").launch("multi_tensor_apply_kernel", ms(1))
                t.item()
        return t

    return meet(build, 4, round(ms(transfer_ms)))


def job_of(traces, folder: Path) -> Ranks:
    return read_job(resolve_traces((str(write_ranks(traces, folder)),)))


def step_of(traces) -> int:
    return max(steady_step_ns(t, 1, EACH - 1) for t in traces)


def saving(result: WhatIfOverRanks, subject: str, change: str) -> int:
    row = result.changes.filter((pl.col("subject") == subject) & (pl.col("change") == change))
    assert len(row) == 1, result.changes
    assert row["saving_ns"][0] == result.step_ns - row["step_ns"][0]
    assert row["saving_share"][0] == pytest.approx(row["saving_ns"][0] / result.step_ns)
    return row["saving_ns"][0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("transfer_ms", [0.5, 2.5, 4, 9])
def test_faster_transfers_save_what_a_job_with_faster_transfers_takes_less(
    transfer_ms, apart, tmp_path
):
    """Where they are hidden behind the backward pass they save little, elsewhere all of it."""
    slow = built(transfer_ms, apart=apart)
    result = what_if_over_ranks(job_of(slow, tmp_path / "ranks"))
    gained = step_of(slow) - step_of(built(transfer_ms / 2, apart=apart))
    # The last step's optimizer lies behind the last collective, so one step in eight has less.
    found = saving(result, "all transfers", "in half the time")
    assert found == pytest.approx(gained, rel=0.1, abs=us(60))
    if apart:
        assert found == pytest.approx(BUCKETS * ms(transfer_ms) / 2, rel=0.02)
    free = step_of(slow) - step_of(built(0.001, apart=apart))
    assert saving(result, "all transfers", "in no time") == pytest.approx(free, rel=0.1, abs=us(60))


def launched_late(transfer_ms):
    """Ranks whose hosts come late with each step, rank 0 the latest, and then wait for no GPU."""

    def build(rank, length):
        t = GpuTrace(rank=rank, world_size=3, device=rank)
        for _ in range(EACH):
            with t.step():
                t.python(ms(6 if rank else 12))
                for _ in range(3):
                    t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(1))
                reduced = t.collective("all_reduce", 50 << 20, length)
                t.wait_collective(reduced)
                t.op("aten::_fused_adamw_").launch("multi_tensor_apply_kernel", us(50))
        t.sync()
        return t

    return meet(build, 3, round(ms(transfer_ms)))


def test_transfers_hidden_behind_a_host_that_launches_late_save_nothing(tmp_path):
    """A GPU that had nothing to do begins when the work is launched, and all after it follows."""
    job = launched_late(2)
    result = what_if_over_ranks(job_of(job, tmp_path / "ranks"))
    assert result.steps["error_ns"].abs().max() <= us(1)
    # The last transfer of the recording is on the way, but steps follow each other as before.
    assert step_of(job) - step_of(launched_late(0.001)) < us(2)
    for change in ("in no time", "in half the time"):
        assert saving(result, "all transfers", change) < us(20)


@pytest.mark.parametrize("transfer_ms", [0.5, 4])
def test_a_rank_like_the_others_saves_what_the_job_without_its_delay_takes_less(
    transfer_ms, tmp_path
):
    slow = built(transfer_ms, late_ms=2)
    job = job_of(slow, tmp_path / "ranks")
    result = what_if_over_ranks(job)
    gained = step_of(slow) - step_of(built(transfer_ms))
    found = saving(result, "rank 2", "no later than the others")
    assert found == pytest.approx(gained, rel=0.1, abs=us(60))
    assert saving(result, "all ranks", "as fast as usual") >= found
    stragglers = stragglers_of_job(job)
    worst = stragglers.causes.row(0, named=True)
    assert (worst["rank"], worst["cause"]) == (2, "compute")
    assert found == pytest.approx(worst["gain_ns"], abs=us(1))
    assert stragglers.verdict.startswith("rank 2 makes the others wait: its computation takes")
    assert result.verdict.split("; ")[0] == stragglers.verdict == rank_map(job).verdict


def test_the_replay_without_a_change_is_the_recording(tmp_path):
    result = what_if_over_ranks(job_of(built(2.5, late_ms=2), tmp_path / "ranks"))
    assert result.changes.schema == pl.Schema(CHANGES)
    assert result.steps.schema == pl.Schema(STEPS)
    assert result.steps["step"].to_list() == list(range(EACH))
    assert result.steps["error_ns"].abs().max() <= us(1)
    # The steps are a partition of what is replayed.
    assert round(result.steps["recorded_ns"].sum() / EACH) == result.recorded_ns
    assert round(result.steps["replayed_ns"].sum() / EACH) == result.step_ns


def test_each_kind_of_collective_is_asked_about(tmp_path):
    """An all-gather before each step's work, and a reduction after it."""

    def build(rank, length):
        t = GpuTrace(rank=rank, world_size=3, device=rank)
        for _ in range(EACH):
            with t.step():
                t.wait_collective(t.collective("all_gather", 1 << 20, length))
                t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(8))
                t.wait_collective(t.collective("all_reduce", 1 << 20, length))
                t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(2))
                t.item()
        return t

    result = what_if_over_ranks(job_of(meet(build, 3, ms(3)), tmp_path / "ranks"))
    kinds = ["world all_gather", "world all_reduce"]
    for subject in kinds:
        assert saving(result, subject, "in no time") == pytest.approx(ms(3), abs=us(60))
        assert saving(result, subject, "in half the time") == pytest.approx(ms(1.5), abs=us(60))
    assert saving(result, "all transfers", "in no time") == pytest.approx(ms(6), abs=us(60))
    assert result.changes.filter(pl.col("subject").str.starts_with("rank ")).is_empty()


def test_it_says_what_it_cannot_tell(tmp_path):
    def build(rank, length):
        t = GpuTrace(rank=rank, world_size=2, device=rank)
        with t.step():
            t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(8 + rank))
            t.collective("all_reduce", 1 << 20, length)
            t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(30))
            t.item()
        return t

    job = job_of(meet(build, 2, ms(3)), tmp_path / "ranks")
    result = what_if_over_ranks(job)
    notes = " ".join(result.notes)
    assert "with two ranks there is no usual to compare with" in notes
    assert "of the recorded steps; what comes before and after stays as it is" in notes
    assert result.verdict.startswith("all transfers in half the time save 1.50 ms")
    alone = Ranks(job.parts[:1], 2)
    with pytest.raises(UsageError, match="two or more"):
        what_if_over_ranks(alone)


def test_ranks_without_common_collectives_replay_nothing(tmp_path):
    def build(rank):
        t = GpuTrace(rank=rank, world_size=2, device=rank)
        with t.step():
            t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(8))
            t.item()
        return t

    result = what_if_over_ranks(job_of([build(0), build(1)], tmp_path / "ranks"))
    assert result.verdict == "no collective could be matched, so nothing is replayed"
    assert (result.step_ns, result.recorded_ns) == (None, None)
    assert result.changes.is_empty()
    assert result.steps.is_empty()


# Tables of operations


def slow_worker(step: int, replica: int, stage: int, way: str, batch: int) -> int:
    usual = (10 if way == FORWARD else 20) * MILLISECOND
    return 2 * usual if (replica, stage) == (2, 1) else usual


def written(job: Job, path: Path) -> Path:
    table_of(job).write_parquet(path)
    return path


NORMALISATION_NS = 50_000
"""What the simulation takes for it, however fast it moves data. It counts as communication."""


@pytest.mark.parametrize(("change", "left"), [("in half the time", 0.5), ("in no time", 0)])
def test_faster_transfers_of_a_pipeline(change, left, tmp_path):
    """Against the same job, simulated with faster transfers by the events' own order."""
    move_ns = 6 * MILLISECOND
    path = written(Job(move_ns=lambda *_: move_ns), tmp_path / "job.parquet")
    faster = Job(move_ns=lambda *_: round(move_ns * left))
    result = what_if_of_operations(path)
    other = what_if_of_operations(written(faster, tmp_path / "faster.parquet"))
    row = result.changes.filter(subject="all transfers", change=change).row(0, named=True)
    expected = other.recorded_ns - (1 - left) * NORMALISATION_NS
    assert row["step_ns"] == pytest.approx(expected, abs=100)
    assert row["saving_ns"] == pytest.approx(result.recorded_ns - expected, abs=100)
    assert result.recorded_ns - other.recorded_ns > 2 * move_ns


def test_a_slow_worker_of_a_pipeline(tmp_path):
    path = written(Job(replicas=4, compute_ns=slow_worker), tmp_path / "job.parquet")
    result = what_if_of_operations(path)
    healthy = what_if_of_operations(written(Job(replicas=4), tmp_path / "healthy.parquet"))
    row = result.changes.filter(subject="slow workers").row(0, named=True)
    assert row["step_ns"] == pytest.approx(healthy.recorded_ns, abs=100)
    assert result.workers.row(0)[:3] == (2, 1, 9)
    assert result.slower_share == pytest.approx(
        result.step_ns / result.steps["as_usual_ns"].mean() - 1, abs=1e-6
    )
    assert result.steps["error_ns"].abs().max() <= 100  # the simulation has no launch delays
    assert healthy.slower_share == pytest.approx(0, abs=1e-6)
    assert set(healthy.changes["subject"]) > {"stage 0", "all operations", "all transfers"}
    assert not set(healthy.changes["change"]) - {"as usual", "in half the time", "in no time"}


def test_the_command_answers_about_traces_and_tables(tmp_path):
    folder = write_ranks(built(2.5, late_ms=2), tmp_path / "ranks")
    table = written(Job(), tmp_path / "job.parquet")
    for path, expected in ((folder, "rank 2"), (table, "stage 0")):
        run = CliRunner().invoke(
            command, ["what-if-ranks", str(path), "--format", "json"], catch_exceptions=False
        )
        subjects = {row["subject"] for row in json.loads(run.stdout)["changes"]}
        assert {expected, "all transfers"} <= subjects
    for words, message in (
        ([str(table), str(folder)], "pass that path alone"),
        ([str(table), "--steps", "1"], "takes no --steps"),
    ):
        with pytest.raises(UsageError, match=message):
            CliRunner().invoke(command, ["what-if-ranks", *words], catch_exceptions=False)
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "other.parquet")
    with pytest.raises(UnreadableInputError, match="the columns dp_rank, stage"):
        CliRunner().invoke(
            command, ["what-if-ranks", str(tmp_path / "other.parquet")], catch_exceptions=False
        )
