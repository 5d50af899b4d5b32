"""All ranks in one picture: pieces of a step on one clock, waits told apart, stages in order."""

from __future__ import annotations

import pytest
from tests.support.gpu_trace import ms
from tests.support.pipeline_traces import Pipeline, pipeline_traces
from tests.support.rank_jobs import rank_of_job

from stepscope.analysis.blame import lanes as lanes_of_ranks
from stepscope.analysis.blame.lanes import BACKWARD, COMPUTE, FORWARD, WAITING
from stepscope.fleet.ask import pipeline_of_job
from stepscope.fleet.job import read_job
from stepscope.fleet.stragglers import stragglers_of_job
from stepscope.report.pictures import MOST_BARS, pictures_of
from stepscope.trace.paths import resolve_traces

DELAYS_MS = (0.0, 3.0, 1.0)


def job_of(folder, traces):
    for rank, trace in enumerate(traces):
        (folder / f"rank{rank}.json").write_bytes(trace.json())
    return read_job(resolve_traces((str(folder),)))


def together(lane, what):
    return sum(end - start for start, end, name in lane.pieces if name == what)


def test_the_late_rank_is_on_top_and_the_others_wait_as_long_as_it_is_late(tmp_path):
    traces = [rank_of_job(rank, DELAYS_MS, steps=3) for rank in range(3)]
    found = stragglers_of_job(job_of(tmp_path, traces)).lanes
    assert [lane.rank for lane in found.lanes] == [1, 0, 2]
    late, first, second = found.lanes
    assert together(late, WAITING) == 0
    assert together(first, WAITING) - together(second, WAITING) == pytest.approx(ms(1), rel=0.05)
    assert together(first, COMPUTE) > 0
    for lane in found.lanes:
        moments = [moment for start, end, _ in lane.pieces for moment in (start, end)]
        assert moments == sorted(moments)  # each moment once
        assert 0 <= moments[0] <= moments[-1] <= found.dur_ns


def test_stages_stand_in_their_order_with_forward_and_backward(tmp_path):
    job = job_of(tmp_path, pipeline_traces(Pipeline(stages=3, batches=4, steps=2, has_engine=True)))
    found = pipeline_of_job(job).lanes
    assert found.is_schedule
    assert [lane.rank for lane in found.lanes] == [0, 1, 2]
    for lane in found.lanes:
        forward, backward = (together(lane, what) for what in (FORWARD, BACKWARD))
        assert forward == pytest.approx(4 * ms(2) + ms(1), rel=0.02)  # and the optimizer
        assert backward == pytest.approx(4 * ms(4), rel=0.02)
    # Each stage begins when the one before has sent.
    begins = [
        next(start for start, _, what in one.pieces if what == FORWARD) for one in found.lanes
    ]
    assert begins == sorted(begins)
    assert together(found.lanes[2], WAITING) > 0
    (drawn,) = pictures_of("pipeline", pipeline_of_job(job))
    assert drawn.drawn["is"] == "lanes"
    assert "schedule" in drawn.drawn["title"]


def test_pictures_of_many_ranks_are_bounded(tmp_path, monkeypatch):
    most = MOST_BARS - 4
    monkeypatch.setattr(lanes_of_ranks, "MOST_LANES", most)
    delays = tuple(0.1 * (rank % 7) for rank in range(most + 6))
    traces = [rank_of_job(rank, delays, steps=2) for rank in range(len(delays))]
    result = stragglers_of_job(job_of(tmp_path, traces))
    arrivals, lanes = (one.drawn for one in pictures_of("stragglers", result))
    assert len(lanes["lanes"]) == most
    assert "6 more ranks left out" in lanes["caption"]
    assert len(arrivals["rows"]) == MOST_BARS
    assert arrivals["rows"][-1]["text"] == "first"
