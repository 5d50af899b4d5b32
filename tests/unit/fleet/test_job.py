"""The ranks of a job as one run: whose trace is whose, what is missing, what does not fit."""

from __future__ import annotations

import json
import tracemalloc

import polars as pl
import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, ms

from stepscope.commands.show import command
from stepscope.errors import UnreadableInputError, UsageError
from stepscope.fleet.engines.local import LocalEngine
from stepscope.fleet.job import read_job
from stepscope.fleet.rank_map import RANKS, rank_map
from stepscope.fleet.rank_steps import PARTS, STEPS
from stepscope.trace.paths import resolve_traces

SLOW = 2


def trace_of(rank, world=4, steps=3, **more):
    """A rank whose step takes 60 ms; rank 2 waits 20 ms longer for its input than the others."""
    t = GpuTrace(rank=rank, world_size=world, device=rank, **more)
    for _ in range(steps):
        with t.step(dur_ns=ms(60)):
            t.data_wait(ms(22 if rank == SLOW else 2))
            t.op("aten::mm").launch("ampere_sgemm_128x64_nn", ms(10))
            t.sync()
            t.collective("all_reduce", 1 << 20, ms(1 if rank == SLOW else 21))
            t.sync()
    return t


def document(rank, **more):
    return trace_of(rank, **more).document()


def written(folder, documents):
    """Files by name, from what they hold."""
    folder.mkdir(exist_ok=True)
    for name, content in documents.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return resolve_traces((str(folder),))


def without_rank(rank):
    found = document(rank)
    found.pop("distributedInfo")
    return found


def test_the_traces_own_rank_counts_and_a_name_that_differs_is_reported(tmp_path):
    files = {f"rank{3 - rank}.json": document(rank) for rank in range(4)}
    job = read_job(written(tmp_path, files))
    assert job.ranks == (0, 1, 2, 3)
    assert job.world_size == 4
    assert [part.name.rpartition("/")[2] for part in job.parts] == [
        "rank3.json", "rank2.json", "rank1.json", "rank0.json",
    ]  # fmt: skip
    assert len(job.notes) == 4
    assert "its name says rank 0, the trace itself rank 3" in "".join(job.notes)


def test_names_count_where_traces_say_nothing(tmp_path):
    files = {f"trace_rank_{rank + 4}.json": without_rank(rank) for rank in range(3)}
    job = read_job(written(tmp_path, files))
    assert job.ranks == (4, 5, 6)
    assert job.world_size is None
    assert job.notes == ()


def test_order_counts_where_nothing_says_anything(tmp_path):
    files = {f"{name}.json": without_rank(rank) for rank, name in enumerate("abc")}
    assert read_job(written(tmp_path, files)).ranks == (0, 1, 2)


def test_names_count_where_traces_claim_one_rank(tmp_path):
    files = {f"rank{number}.json": document(0) for number in range(3)}
    job = read_job(written(tmp_path, files))
    assert job.ranks == (0, 1, 2)
    assert any("several traces say that they are rank 0" in note for note in job.notes)


def test_a_trace_that_is_given_twice_is_refused(tmp_path):
    traces = written(tmp_path, {"rank0.json": document(0)})
    with pytest.raises(UsageError, match="given twice: rank 0"):
        read_job([*traces, *traces])


def test_missing_and_unreadable_ranks_are_listed(tmp_path):
    whole = json.dumps(document(6, world=9))
    files = {
        "rank0.json": document(0, world=9),
        "rank1.json": "this is no trace",
        "rank2.json": document(2, world=9),
        "rank5.json": document(5, world=9),
        "rank6.json": whole[: len(whole) // 2],
    }
    job = read_job(written(tmp_path, files))
    notes = " | ".join(job.notes)
    assert "rank1.json" in notes
    # What is left of a truncated trace is read.
    assert job.ranks == (0, 2, 5, 6)
    assert "no trace of ranks 1, 3, 4, 7, 8 of 9" in notes
    with pytest.raises(UnreadableInputError, match=r"rank1\.json"):
        read_job(written(tmp_path / "bad", {"rank1.json": "this is no trace"}))


@pytest.mark.parametrize(
    ("world", "size", "note"),
    [
        (999_999_999, 999_999_999, "no trace of ranks 0, 3 to 999999998 of 999999999"),
        (10**30, None, None),
    ],
)
def test_a_job_may_claim_any_number_of_ranks(tmp_path, world, size, note):
    files = {f"rank{rank}.json": document(rank) for rank in (1, 2)}
    for file in files.values():
        file["distributedInfo"]["world_size"] = world
    tracemalloc.start()
    try:
        job = read_job(written(tmp_path, files))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert job.world_size == size
    assert (note is None) == (not any("no trace of" in text for text in job.notes))
    assert note is None or note in job.notes
    assert peak_bytes < 50_000_000


def test_processes_read_what_this_one_reads(tmp_path):
    traces = written(tmp_path, {f"rank{rank}.json": document(rank) for rank in range(4)})
    seen = []
    here = read_job(traces, engine=LocalEngine(1), progress=lambda *done: seen.append(done))
    there = read_job(traces, engine=LocalEngine(2))
    assert here == there
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_the_map_shows_the_slow_rank_and_its_parts_add_up(tmp_path):
    job = read_job(written(tmp_path, {f"rank{rank}.json": document(rank) for rank in range(4)}))
    found = rank_map(job)
    assert found.slowest_by_own_time == SLOW
    assert found.look_at[0] == SLOW
    assert dict(found.ranks.schema) == RANKS
    assert found.ranks["rank"][0] == SLOW
    assert found.ranks["slowest"].to_list() == [3, 0, 0, 0]
    assert found.steps.columns == [*STEPS, "own_ns", "wait_ns"]
    total = found.steps.select(pl.sum_horizontal(PARTS)).to_series()
    assert total.equals(found.steps["wall_ns"], check_names=False)
    assert (found.steps["own_ns"] + found.steps["exposed_comm_ns"]).equals(
        found.steps["wall_ns"], check_names=False
    )
    by_part = {row["part"]: row for row in found.parts.iter_rows(named=True)}
    assert by_part["input"]["most_rank"] == SLOW
    # Of the idle time, only what no work covers counts: the very first batch precedes all work.
    assert by_part["input"]["imbalance_ns"] == pytest.approx(ms(20), rel=0.4)
    assert by_part["compute"]["imbalance_ns"] < ms(1)
    waits = dict(found.ranks.select("rank", "wait_ns").iter_rows())
    assert waits[SLOW] == 0
    assert all(waits[rank] == ms(20) for rank in (0, 1, 3))


def test_questions_over_ranks_from_the_command_line(tmp_path):
    written(tmp_path, {f"rank{rank}.json": document(rank) for rank in (0, 1, 2)})
    words = [str(tmp_path), "--format", "json", "--workers", "2"]
    shown = json.loads(
        CliRunner().invoke(command, ["ranks", *words], catch_exceptions=False).output
    )
    assert shown["ranks"][0]["rank"] == SLOW
    assert "no trace of rank 3 of 4" in shown["notes"]
    late = CliRunner().invoke(command, ["stragglers", *words], catch_exceptions=False)
    late = json.loads(late.output)
    assert (late["straggler"], late["ranks"][0]["cause"]) == (SLOW, "input")
    assert "no trace of rank 3 of 4" in late["notes"]
    with pytest.raises(UsageError, match="give --engine dask"):
        CliRunner().invoke(
            command, ["ranks", *words, "--scheduler", "tcp://127.0.0.1:1"], catch_exceptions=False
        )


def test_a_rank_without_steps_or_gpu_work_is_no_error(tmp_path):
    files = {"rank0.json": document(0), "rank1.json": {"traceEvents": []}}
    job = read_job(written(tmp_path, files))
    assert rank_map(job).ranks["rank"].to_list() == [0]
    with pytest.raises(UsageError, match="no steps"):
        rank_map(read_job(written(tmp_path / "empty", {"rank0.json": {"traceEvents": []}})))


def test_a_rank_whose_file_is_cut_off_is_named_in_every_answer(tmp_path):
    cut = json.dumps(document(1))
    files = {f"rank{rank}.json": document(rank) for rank in (0, 2, 3)}
    job = read_job(written(tmp_path, {**files, "rank1.json": cut[: len(cut) * 95 // 100]}))
    assert job.ranks == (0, 1, 2, 3)
    told = [note for note in job.notes if "the file is truncated" in note]
    assert told == [
        f"{tmp_path / 'rank1.json'}: the file is truncated; every complete event was kept"
    ]
