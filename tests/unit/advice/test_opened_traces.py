"""Traces are kept between the comparison of ranks and their judgement, within a bound."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Iterator

import polars as pl
import pytest
from tests.support.planted import dump
from tests.support.rank_jobs import rank_of_job

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.job import reading as read_ranks
from stepscope.advice.job.reading import ComparedRankTask, one_by_one
from stepscope.advice.rank import diagnose_rank, opened_traces
from stepscope.advice.rank.diagnose_rank import read_compared_rank, summarise_rank
from stepscope.advice.rank.opened_traces import OpenedTraces
from stepscope.advice.rank.summary import Request
from stepscope.analysis.selection.scope import Scope
from stepscope.errors import UsageError
from stepscope.opening.reader import open_run
from stepscope.trace import load as loading

pytestmark = pytest.mark.usefixtures("cache")
DELAYS = (0, 40, 10)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    for rank in range(len(DELAYS)):
        path = folder / f"rank{rank}.pt.trace.json"
        path.write_bytes(dump(rank_of_job(rank, DELAYS)))
    return folder


@pytest.fixture
def loaded(monkeypatch) -> Iterator[list[weakref.ref[pl.DataFrame]]]:
    """A table of each trace that was read. Frees nothing by the collector meanwhile."""
    traces: list[weakref.ref[pl.DataFrame]] = []
    real = diagnose_rank.load

    def load(path):
        trace = real(path)
        traces.append(weakref.ref(trace.lanes))
        return trace

    monkeypatch.setattr(diagnose_rank, "load", load)
    gc.disable()
    yield traces
    gc.enable()


def in_memory(loaded: list[weakref.ref[pl.DataFrame]]) -> int:
    return sum(one() is not None for one in loaded)


@pytest.fixture
def unpacked(monkeypatch) -> None:
    """Keeps small traces as larger ones are kept."""
    monkeypatch.setattr(opened_traces, "PACKED_BELOW_BYTES", 0)


def test_small_traces_are_read_once_and_packed_until_they_are_judged(job, loaded, monkeypatch):
    whole = diagnose(open_run(str(job)))
    assert len(loaded) == 3
    assert in_memory(loaded) == 0
    monkeypatch.setattr(read_ranks, "OpenedTraces", lambda: OpenedTraces(0))
    monkeypatch.setattr(diagnose_rank, "load", loading.load)
    with monkeypatch.context() as patched:
        patched.setattr(read_ranks.Memo, "find", lambda _: None)
        assert diagnose(open_run(str(job))).ranks == whole.ranks


def test_a_packed_trace_takes_a_part_of_its_file(job):
    path = job / "rank0.pt.trace.json"
    opened = OpenedTraces(path.stat().st_size // 2)
    with opened.open_and_keep(path, loading.load) as trace:
        parents = trace.parents
    kept = opened.take_or_open(path, lambda _: pytest.fail("it is kept"))
    assert kept.parents.tolist() == parents.tolist()
    assert kept.path == trace.path
    for name in ("events", "args", "names", "lanes", "flows", "metadata", "problems", "derived"):
        assert kept.table(name).collect().equals(trace.table(name).collect())


@pytest.mark.usefixtures("unpacked")
def test_larger_traces_are_freed_as_soon_as_they_are_judged(job, loaded, monkeypatch):
    ahead = []
    judge = diagnose_rank.summarise_rank
    monkeypatch.setattr(
        diagnose_rank,
        "summarise_rank",
        lambda *about: (ahead.append(in_memory(loaded)), judge(*about))[1],
    )
    diagnosis = diagnose(open_run(str(job)))
    assert len(loaded) == 3
    assert ahead == [3, 2, 1]
    assert in_memory(loaded) == 0
    assert diagnosis.between is not None


def test_without_room_one_rank_is_in_memory_at_a_time(job, loaded, tmp_path, monkeypatch):
    """When a trace is loaded, those before it are gone, without waiting for the collector."""
    whole = diagnose(open_run(str(job)))
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "empty"))
    loaded.clear()
    real = diagnose_rank.load

    def load(path):
        assert in_memory(loaded) == 0
        return real(path)

    monkeypatch.setattr(diagnose_rank, "load", load)
    monkeypatch.setattr(read_ranks, "OpenedTraces", lambda: OpenedTraces(0))
    diagnosis = diagnose(open_run(str(job)))
    assert len(loaded) == 6  # each is met, and then judged
    assert in_memory(loaded) == 0
    assert diagnosis.findings == whole.findings
    assert diagnosis.ranks == whole.ranks


@pytest.mark.usefixtures("unpacked")
def test_no_more_traces_are_kept_than_there_is_room_for(job, loaded, monkeypatch):
    one, *_ = open_run(str(job)).ranks
    tables = loading.load(one.windows[0].trace_path).tables()
    opened = OpenedTraces(5 * tables.size_bytes)  # one takes twice that, with what is derived
    monkeypatch.setattr(read_ranks, "OpenedTraces", lambda: opened)
    with one_by_one() as read:
        read([ComparedRankTask(rank, Scope()) for rank in open_run(str(job)).ranks])
        assert (len(loaded), in_memory(loaded)) == (3, 2)
    assert in_memory(loaded) == 0


def test_a_trace_that_changes_before_it_is_judged_is_read_again(job, loaded, tmp_path):
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes((job / "rank0.pt.trace.json").read_bytes())
    (rank,) = open_run(str(path)).ranks
    opened = OpenedTraces()
    met = read_compared_rank(rank, Scope(), opened)
    path.write_bytes(dump(rank_of_job(0, (0, 5), steps=2)))
    summary = summarise_rank(rank, Request(), None, met, opened)
    assert len(loaded) == 2
    assert summary == summarise_rank(rank, Request(), None, met)
    assert in_memory(loaded) == 0


def test_what_is_kept_stays_in_its_process(job, loaded):
    opened = OpenedTraces(12_345_678)
    (rank, *_) = open_run(str(job)).ranks
    met = read_compared_rank(rank, Scope(), opened)
    copy = pickle.loads(pickle.dumps(opened))
    assert copy.most_bytes == opened.most_bytes
    summarise_rank(rank, Request(), None, met, copy)
    assert len(loaded) == 2
    summarise_rank(rank, Request(), None, met, opened)
    assert len(loaded) == 2


def test_a_trace_in_a_store_is_not_kept(job, loaded, tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path))
    monkeypatch.setenv("STEPSCOPE_STORES", "cache")
    monkeypatch.setattr(loading, "STORE_ABOVE_BYTES", 0)
    (rank, *_) = open_run(str(job)).ranks
    read_compared_rank(rank, Scope(), OpenedTraces())
    assert len(loaded) == 1
    assert in_memory(loaded) == 0


def test_a_trace_that_cannot_be_judged_is_let_go_as_well(job, loaded):
    with pytest.raises(UsageError, match="no step 77"):
        diagnose(open_run(str(job)), scope=Scope(steps=(77,)))
    assert loaded
    assert in_memory(loaded) == 0
