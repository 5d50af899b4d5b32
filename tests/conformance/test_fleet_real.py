"""Stragglers of real jobs: the ranks that are known to be late, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.traces import trace_path

from stepscope.commands.main import cli

JOBS = {
    "amd_resnet_ddp_4rank": (3, 21, 21),
    "v100_dlrm_8rank": (7, 5, 8),
}


def shown(*paths: Path) -> dict:
    names = [str(path) for path in paths]
    result = CliRunner().invoke(cli, ["show", "stragglers", *names, "--format", "json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


@pytest.mark.parametrize("job", JOBS)
def test_the_late_rank_comes_first(job):
    rank = JOBS[job][0]
    document = shown(trace_path(f"{job}/rank0.pt.trace.json.gz").parent)
    first = document["ranks"][0]
    counted = (first["rank"], first["last_arrivals"], first["collectives"])
    assert counted == JOBS[job]
    blamed = [row["caused_wait_ns"] for row in document["ranks"]]
    assert blamed == sorted(blamed, reverse=True)
    assert blamed[0] > 2 * blamed[1]
    assert document["straggler"] == rank
    # Its GPU stands idle before most collectives: the host launches too slowly.
    worst = document["causes"][0]
    assert (worst["rank"], worst["cause"]) == (rank, "host")
    assert sum(blamed) + document["unexplained_ns"] >= document["waits_ns"]


def test_traces_of_different_jobs_are_refused():
    paths = [
        trace_path("amd_resnet_ddp_4rank/rank0.pt.trace.json.gz"),
        trace_path("mi300x_resnet_train/trace.json.gz"),
    ]
    result = CliRunner().invoke(cli, ["show", "stragglers", *map(str, paths)])
    assert result.exit_code != 0
    assert "no ranks of one run" in str(result.exception or result.output)


def test_jobs_of_one_size_that_do_not_fit_accuse_nobody():
    paths = [
        trace_path("hta_trace_diff/control.json.gz"),
        trace_path("v100_dlrm_8rank/rank0.pt.trace.json.gz"),
    ]
    document = shown(*paths)
    assert not any(row["is_notable"] for row in document["causes"])
    assert document["sets"] == [] or document["straggler"] is None
