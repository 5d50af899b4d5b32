"""A rank's summary travels: it is small, holds no table of the trace, and says all that is said."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import polars as pl
import pytest
from tests.support.planted import SCENARIOS, dump
from tests.support.rank_jobs import rank_of_job
from tests.support.step_records import step_records

from stepscope.advice.diagnosis import diagnose, diagnose_ranks
from stepscope.advice.job.compared import match_ranks, recorded_steps
from stepscope.advice.rank.diagnose_rank import read_compared_rank, summarise_rank
from stepscope.advice.rank.summary import Request
from stepscope.advice.thresholds import Thresholds
from stepscope.analysis.graph.step_graph import StepGraph
from stepscope.analysis.record.compared_steps import MOST_STEPS, ComparedSteps
from stepscope.analysis.selection.scope import Scope
from stepscope.opening.reader import open_run
from stepscope.skew.rank_skew import RankSteps, rank_skew
from stepscope.trace.model import Trace


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    for rank, delay in enumerate(delays := (0, 40, 10)):
        assert delay == delays[rank]
        path = folder / f"rank{rank}.pt.trace.json"
        path.write_bytes(dump(rank_of_job(rank, delays)))
    return folder


def sent(value):
    return pickle.loads(pickle.dumps(value))


def tables_in(value, path="summary"):
    """Every table, array or trace that hangs on a value, except those of the metrics."""
    if isinstance(value, (pl.DataFrame, pl.LazyFrame, pl.Series, np.ndarray, Trace, StepGraph)):
        yield path
    elif dataclasses.is_dataclass(value):
        for name in value.__dict__:
            if name != "metrics":
                yield from tables_in(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from tables_in(item, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple, set)):
        for place, item in enumerate(value):
            yield from tables_in(item, f"{path}[{place}]")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scenario", SCENARIOS[::6], ids=lambda one: one.name)
def test_a_summary_comes_back_as_it_was_and_holds_no_tables(scenario, tmp_path):
    path = tmp_path / "trace.pt.trace.json"
    path.write_bytes(dump(scenario.build()))
    (rank,) = open_run(str(path)).ranks
    summary = summarise_rank(rank, Request())
    assert sent(summary) == summary
    assert list(tables_in(summary)) == []
    assert {finding.id for finding in summary.findings} == scenario.expected


def test_ranks_summarised_elsewhere_make_the_same_diagnosis(job):
    """Every value goes through a pickle, as between processes."""
    run = open_run(str(job))
    here = diagnose(run)
    meetings = [sent(read_compared_rank(sent(rank), Scope())) for rank in run.ranks]
    matched, notes = match_ranks(meetings)
    skew = rank_skew(recorded_steps(meetings))
    request = Request(has_peers=skew is not None)
    ranks = [
        sent(summarise_rank(sent(rank), sent(request), sent(matched.waits_of(rank.rank)), met))
        for rank, met in zip(run.ranks, meetings, strict=True)
    ]
    there = diagnose_ranks(run, ranks, Thresholds(), matched, skew, notes)
    assert there.verdict == here.verdict
    assert there.findings == here.findings
    assert there.ranks == here.ranks
    assert there.between.table.equals(here.between.table)
    assert there.between.straggler == 1
    assert any("rank 1" in finding.title for finding in here.findings)


def test_what_a_summary_carries_is_enough_to_match_the_ranks(job):
    ranks = open_run(str(job)).ranks
    met = [read_compared_rank(rank, Scope()) for rank in ranks]
    summaries = [
        sent(summarise_rank(rank, Request(), None, one))
        for rank, one in zip(ranks, met, strict=True)
    ]
    matched, _ = match_ranks([summary.compared for summary in summaries])
    assert matched.report.straggler == 1
    assert matched.report.ranks["total_wait_ns"].sum() > 0


def test_a_rank_and_step_takes_little(tmp_path):
    """Three kilobytes are the goal for each; four collectives and a GPU make it less."""
    sizes = {}
    for steps in (5, 25):
        path = tmp_path / f"{steps}.pt.trace.json"
        path.write_bytes(dump(rank_of_job(0, (0, 5), steps=steps)))
        (rank,) = open_run(str(path)).ranks
        met = read_compared_rank(rank, Scope())
        sizes[steps] = len(pickle.dumps(summarise_rank(rank, Request(), None, met)))
    assert (sizes[25] - sizes[5]) / 20 < 1 << 10
    assert sizes[5] < 24 << 10


def test_waits_of_another_window_are_not_taken_for_those_of_this_one(job):
    run = open_run(str(job))
    meetings = [read_compared_rank(rank, Scope()) for rank in run.ranks]
    matched, _ = match_ranks(meetings)
    waits = matched.waits_of(0)
    other = dataclasses.replace(waits, window=waits.window + 1)
    alone = summarise_rank(run.ranks[0], Request())
    assert summarise_rank(run.ranks[0], Request(), other) == alone
    assert summarise_rank(run.ranks[0], Request(), waits) != alone


def test_the_skew_of_packed_records_is_that_of_the_records():
    backward_ms = (30, 21, 12)
    ranks = [
        RankSteps(rank, step_records([100] * 40, phases_ms={"backward": spent}))
        for rank, spent in enumerate(backward_ms)
    ]
    packed = [
        dataclasses.replace(one, records=sent(ComparedSteps.of(one.records)).records())
        for one in ranks
    ]
    assert rank_skew(packed) == rank_skew(ranks)
    assert rank_skew(ranks) is not None


def test_of_a_long_record_all_ranks_keep_the_same_steps():
    lengths = (MOST_STEPS * 2 + 10, MOST_STEPS * 2 - 10)
    kept = [
        {one.step for one in ComparedSteps.of(step_records([10] * length)).records()}
        for length in lengths
    ]
    assert all(len(steps) <= MOST_STEPS for steps in kept)
    assert len(kept[0] & kept[1]) >= 2000  # as many as are compared
    assert kept[0] <= kept[1] | set(range(lengths[1], lengths[0]))
