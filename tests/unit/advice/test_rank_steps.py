"""The map of ranks on a page: the numbers of `fleet.rank_map`, bounded."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.support.page_data import blocks_of, data_of
from tests.support.rank_jobs import rank_of_job
from tests.support.rendered import diagnosis_to_html

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.job import rank_steps as module
from stepscope.advice.job.rank_steps import rank_steps
from stepscope.commands.main import cli
from stepscope.opening.reader import open_run

DELAYS_MS = (1.0, 4.0, 1.5)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    for rank in range(len(DELAYS_MS)):
        (folder / f"rank{rank}.json").write_bytes(rank_of_job(rank, DELAYS_MS, steps=4).json())
    return folder


@pytest.fixture(scope="module")
def diagnosis(job):
    return diagnose(open_run(job))


def test_each_cell_is_what_show_ranks_says(job, diagnosis):
    said = CliRunner().invoke(cli, ["show", "ranks", str(job), "--format", "json"])
    known = {(row["rank"], row["step"]): row["own_ns"] for row in json.loads(said.stdout)["steps"]}
    found = rank_steps(diagnosis.ranks)
    assert found.ranks[0] == 1
    assert {
        (rank, step): found.own_ns[row][column]
        for row, rank in enumerate(found.ranks)
        for column, step in enumerate(found.steps)
    } == known


def test_the_page_draws_it_and_says_what_it_leaves_out(diagnosis, monkeypatch):
    monkeypatch.setattr(module, "MOST_RANKS", 2)
    monkeypatch.setattr(module, "MOST_STEPS", 3)
    data = data_of(diagnosis_to_html(diagnosis))
    (drawn,) = blocks_of(data, "rank_steps")
    assert drawn["ranks"] == [1, 2]
    assert len(drawn["steps"]) == 3
    notes = [one["text"] for one in blocks_of(data, "text") if "by itself" in one["text"]]
    assert "Left out: 1 rank with less and 1 earlier step." in notes[0]


def test_one_rank_has_no_map(diagnosis):
    assert rank_steps(diagnosis.ranks[:1]) is None
