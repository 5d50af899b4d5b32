"""A report about memory snapshots alone: a verdict, findings and advice, in every format."""

from __future__ import annotations

import csv
import io
import json
import pickle

import pytest
from click.testing import CliRunner
from tests.support.allocator import MIB, Allocator, OutOfMemory
from tests.support.snapshots import Frames, plain_training, segments_only, train
from tests.support.step_records import step_records, write_run

from stepscope.advice.diagnosis import diagnose
from stepscope.advice.memory_report import NOTHING, report_snapshots
from stepscope.advice.thresholds import Thresholds
from stepscope.commands import report
from stepscope.opening.reader import open_run
from stepscope.run.layout import RunLayout


def written(path, snapshot):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(snapshot))
    return path


def judged(*paths):
    return report_snapshots("here", [str(path) for path in paths], Thresholds())


def full():
    """Twenty blocks of one line fill the device, and the next request fails."""
    allocator, stack = Allocator(total=200 * MIB), Frames()
    with pytest.raises(OutOfMemory):
        for _ in range(12):
            allocator.malloc(20 * MIB, frames=stack("model.py:4:forward"))
    return allocator.snapshot()


def printed(*words):
    result = CliRunner().invoke(report.command, [str(word) for word in words])
    assert result.exception is None, result.output
    return result.stdout


def test_a_failed_request_leads_with_its_cause_and_a_remedy(tmp_path):
    found = judged(written(tmp_path / "a.pickle", full()))
    assert found.verdict.startswith("out-of-memory: model.py:4 forward asked for 20 MiB")
    assert found.findings[0].id == "out-of-memory"
    assert "by simulation" in found.findings[0].advice


def test_that_nothing_shows_what_memory_is_for_is_a_sentence(tmp_path):
    allocator = Allocator()
    allocator.malloc(30 * MIB, frames=Frames()("train.py:3:main"))
    found = judged(written(tmp_path / "a.pickle", allocator.snapshot()))
    assert found.verdict == (
        f"{NOTHING}: the peak is 30 MiB, and nothing shows what it was for (memory_census=True "
        "records that); the line with most is train.py:3 main (100%)"
    )


def test_where_nothing_is_wrong_the_peak_is_described(tmp_path):
    allocator = Allocator()
    train(allocator, steps=4)
    found = judged(written(tmp_path / "a.pickle", allocator.snapshot()))
    assert found.verdict.startswith("the peak is 51.4 MiB, 47% of it activation memory; 2 tensors")


def test_a_state_without_history_is_no_peak(tmp_path):
    found = judged(written(tmp_path / "a.pickle", segments_only(plain_training())))
    assert "what was held at the dump (not a peak)" in found.verdict
    for one in found.findings:
        assert not any("peak" in words for words in (one.title, *(e.label for e in one.evidence)))
    (note,) = (n for n in found.shown.overview.result.notes if n.startswith("no history"))
    assert "_record_memory_history" in note


def test_an_empty_snapshot_says_that_nothing_was_recorded(tmp_path):
    found = judged(written(tmp_path / "a.pickle", {"segments": [], "device_traces": [[]]}))
    assert found.verdict.startswith("nothing was recorded")
    assert any("nothing was recorded" in note for note in found.shown.overview.result.notes)


def test_a_folder_of_ranks_is_judged_by_the_rank_that_failed(tmp_path):
    for rank in (0, 1, 2):
        snapshot = full() if rank == 1 else plain_training()
        written(tmp_path / f"snapshot_rank{rank}.pickle", snapshot)
    text = printed(tmp_path)
    assert "Verdict  rank 1: out-of-memory: model.py:4 forward asked for" in text
    assert "Ranks (3)" in text
    document = json.loads(printed(tmp_path, "--format", "json"))
    assert document["rank_shown"] == 1
    assert [one["rank"] for one in document["snapshots"]] == [0, 1, 2]
    assert [one["out_of_memory"] for one in document["snapshots"]] == [0, 1, 0]
    assert {one["rank"] for one in document["findings"] if one["id"] == "out-of-memory"} == {1}


def test_every_format_has_the_verdict_and_the_findings(tmp_path):
    path = written(tmp_path / "a.pickle", full())
    whole = printed(path, "--full")
    for words in ("requests served after it", "Would have been enough", "model.py:4 forward"):
        assert words in whole
    (row,) = [
        row
        for row in csv.DictReader(io.StringIO(printed(path, "--format", "csv")))
        if row["id"] == "out-of-memory"
    ]
    assert row["severity"] == "high"
    assert "### 1. HIGH out-of-memory" in printed(path, "--format", "md")
    page = printed(path, "--format", "html")
    assert "asked for 20 MiB" in page
    assert "Memory over time" in page


def test_a_run_that_ended_in_its_first_step_reports_its_snapshots(tmp_path):
    layout = RunLayout(tmp_path / "run").rank(3)
    written(layout.snapshots / "a.pickle", full())
    layout.manifest.write_text(json.dumps({"rank": 3}))
    (tmp_path / "run" / "run.json").write_text("{}")
    document = json.loads(printed(tmp_path / "run", "--format", "json"))
    assert document["verdict"].startswith("out-of-memory: ")
    assert document["rank_shown"] == 3


@pytest.mark.parametrize("goes_on", [False, True])
def test_in_a_run_with_steps_a_failed_request_leads_unless_it_was_caught(tmp_path, goes_on):
    """Beside an input wait that saves most of the step."""
    steps = step_records([10] * 20, waits_ms=8)
    run = write_run(tmp_path, {0: steps})
    allocator, stack = Allocator(total=200 * MIB), Frames()
    allocator.malloc(150 * MIB, frames=stack("model.py:4:forward"))
    with pytest.raises(OutOfMemory):
        allocator.malloc(100 * MIB, frames=stack("model.py:9:attend"))
    for _ in range(150 if goes_on else 0):
        allocator.free(allocator.malloc(MIB, frames=stack("model.py:4:forward")))
    written(RunLayout(run).rank(0).snapshots / "a.pickle", allocator.snapshot())
    found = diagnose(open_run(run))
    order = [one.id for one in found.findings]
    assert {"out-of-memory", "input-bound"} <= set(order)
    leads = found.verdict.startswith("out-of-memory: model.py:9 attend asked for 100 MiB")
    assert leads is not goes_on
    assert (order[0] == "out-of-memory") is not goes_on
    if leads:
        assert "Until then: input-bound" in found.verdict


def test_a_few_tensors_of_one_size_are_named_rather_than_the_line_with_most(tmp_path):
    """Logits, and what the loss makes of them, in several lines or in backward, without a stack."""
    allocator = Allocator()
    for line in (47, 48, 49):
        allocator.malloc(400 * MIB, frames=Frames()(f"train.py:{line}:step"))
    allocator.malloc(100 * MIB, frames=Frames()("train.py:3:main"))
    found = judged(written(tmp_path / "a.pickle", allocator.snapshot()))
    assert found.verdict == (
        "the peak is 1.27 GiB, and nothing shows what it was for (memory_census=True records that);"
        " 3 tensors of one size or line are 92% of the peak memory, made at train.py:47 step, "
        "train.py:48 step and 1 more"
    )
