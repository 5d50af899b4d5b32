"""Ranks read in several processes give the diagnosis that this process gives."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.support.fleet_tasks import TracesKept
from tests.support.planted import dump
from tests.support.rank_jobs import rank_of_job

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.job.reading import ComparedRankTask, answers, one_by_one
from stepscope.advice.rank.opened_traces import KEPT_BYTES
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UsageError
from stepscope.fleet import each_rank
from stepscope.fleet.each_rank import InProcesses, reader_for, workers_for
from stepscope.opening.reader import open_run
from stepscope.trace.load import load

DELAYS_MS = (0, 40, 10)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    for rank in range(len(DELAYS_MS)):
        (folder / f"rank{rank}.pt.trace.json").write_bytes(dump(rank_of_job(rank, DELAYS_MS)))
    return open_run(str(folder))


def test_processes_give_the_same_diagnosis(run):
    here = diagnose(run)
    there = diagnose(run, each=InProcesses(2))
    assert there.verdict == here.verdict
    assert there.findings == here.findings
    assert there.ranks == here.ranks
    assert there.between.straggler == 1


def test_this_process_reads_only_for_a_baseline_what_others_would_read(run, monkeypatch):
    opened = []

    @contextmanager
    def noting():
        opened.append("here")
        with one_by_one() as read:
            yield read

    monkeypatch.setattr("stepscope.advice.diagnosis.one_by_one", noting)
    alone = diagnose(run, each=one_by_one)
    assert opened == []
    baseline = load(run.ranks[0].windows[-1].trace_path)
    assert diagnose(run, baseline=baseline, each=one_by_one).findings == alone.findings
    assert opened == ["here"]


def test_each_process_is_asked_again_about_the_ranks_whose_traces_it_keeps(run):
    with InProcesses(3)() as read:
        tasks = [TracesKept(rank) for rank in run.ranks]
        assert read(tasks) == [0, 0, 0]
        assert answers(read, [ComparedRankTask(rank, Scope()) for rank in run.ranks])
        assert read(tasks) == [1, 1, 1]


def test_an_error_is_raised_as_in_this_process(run):
    with pytest.raises(UsageError) as here:
        diagnose(run, scope=Scope(steps=(99,)))
    with pytest.raises(UsageError) as there:
        diagnose(run, scope=Scope(steps=(99,)), each=InProcesses(2))
    assert str(there.value) == str(here.value)


@pytest.mark.parametrize(
    ("cpus", "available", "least_bytes", "workers"),
    [
        (8, 1 << 40, 1, 3),  # no more than ranks
        (2, 1 << 40, 1, 2),
        (1, 1 << 40, 1, None),
        (8, 1 << 40, 1 << 30, None),  # small traces
        (8, 1, 1, None),  # no memory
        (8, KEPT_BYTES, 1, None),  # none beside the traces that are kept
    ],
)
def test_as_many_processes_as_there_are_cpus_and_memory(
    run, monkeypatch, cpus, available, least_bytes, workers
):
    monkeypatch.setattr(each_rank, "allowed_cpus", lambda: cpus)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: _Memory(available))
    monkeypatch.setattr(each_rank, "_WORTH_PROCESSES_BYTES", least_bytes)
    expected = one_by_one if workers is None else InProcesses(workers)
    assert reader_for(run) == expected


def test_what_is_on_no_file_system_here_is_read_by_several_from_four_traces_on(monkeypatch):
    monkeypatch.setattr(each_rank, "allowed_cpus", lambda: 8)
    urls = [Path(f"s3://bucket/rank{rank}.json") for rank in range(4)]
    assert (workers_for(urls[:3]), workers_for(urls)) == (1, 4)


def test_many_ranks_are_worth_processes_however_small_they_are(run, monkeypatch):
    monkeypatch.setattr(each_rank, "allowed_cpus", lambda: 2)
    assert reader_for(run) == one_by_one
    monkeypatch.setattr(each_rank, "_WORTH_PROCESSES_RANKS", 3)
    assert reader_for(run) == InProcesses(2)


class _Memory:
    def __init__(self, available):
        self.available = available
