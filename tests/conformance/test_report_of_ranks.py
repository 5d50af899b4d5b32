"""The report of a directory of ranks: who is late, as the facts about these traces say."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.support.stragglers import find_stragglers
from tests.support.traces import trace_path

from stepscope.advice.diagnosis import diagnose
from stepscope.commands.report import command
from stepscope.opening.reader import open_run
from stepscope.trace.load import load

RUNS = {
    # Folder, a file in it, the straggler, how often it is the last, of how many.
    "amd_resnet_ddp_4rank": ("rank0.pt.trace.json.gz", 3, 21, 21),
    "v100_dlrm_8rank": ("rank0.pt.trace.json.gz", 7, 5, 8),
}


pytestmark = pytest.mark.usefixtures("cache_of_the_module")


@pytest.mark.parametrize("folder", RUNS)
def test_the_straggler_is_named(folder):
    file, straggler, last, collectives = RUNS[folder]
    path = trace_path(f"{folder}/{file}").parent
    diagnosis = diagnose(open_run(path))
    between = diagnosis.between
    assert between is not None
    assert between.straggler == straggler
    row = between.table.filter(rank=straggler).row(0, named=True)
    assert (row["last"], row["collectives"]) == (last, collectives)
    assert row["wait_ns"] == between.table["wait_ns"].min()
    assert (between.table["own_ns"] > 0).all()
    waiting = [finding for finding in diagnosis.findings if finding.id == "rank-waiting"]
    assert waiting
    assert straggler not in {finding.rank for finding in waiting}
    assert all(f"mostly for rank {straggler}" in finding.title for finding in waiting)
    text = CliRunner().invoke(command, [str(path)], catch_exceptions=False).stdout
    assert f"rank {straggler} arrives last in {last} of {collectives} collectives" in text


@pytest.mark.parametrize("folder", RUNS)
def test_waiting_is_worth_no_more_than_the_replay_of_all_ranks_gives(folder):
    """Some ranks wait for milliseconds, but others come nearly as late as the last one."""
    path = trace_path(f"{folder}/{RUNS[folder][0]}").parent
    files = sorted(path.glob("*.json.gz"))
    told = find_stragglers([(rank, load(file)) for rank, file in enumerate(files)])
    most_ns = int(told.causes.filter(rank=told.straggler)["gain_ns"].sum())
    waiting = [one for one in diagnose(open_run(path)).findings if one.id == "rank-waiting"]
    assert waiting
    for one in waiting:
        saving_ns = one.saving_ns or 0
        assert saving_ns <= most_ns
        assert saving_ns <= 0.05 * (saving_ns + (one.predicted_step_ns or 0))
        assert saving_ns or f"rank {told.straggler} " in one.saving_reason


def test_what_sets_the_late_rank_apart():
    path = trace_path("amd_resnet_ddp_4rank/rank0.pt.trace.json.gz").parent
    odd = diagnose(open_run(path)).odd_parts
    # Its host takes twice as long to launch the same work.
    assert odd.row(0, named=True)["rank"] == 3
    assert odd.row(0, named=True)["part"] == "idle: launches and dispatch"
