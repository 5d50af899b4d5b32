"""Folders of traces: ranks of one run are judged together, anything else is said first."""

from __future__ import annotations

import json
import os

import pytest
from click.testing import CliRunner
from tests.support.gpu_trace import GpuTrace, us

from stepscope.advice.diagnosis import diagnose
from stepscope.commands.main import cli, main
from stepscope.errors import UnreadableInputError
from stepscope.opening import discover
from stepscope.opening.reader import one_job, open_run


def trace(step_us=500, rank=None, world_size=1):
    t = GpuTrace() if rank is None else GpuTrace(rank=rank, world_size=world_size)
    for _ in range(4):
        with t.step(dur_ns=us(step_us)):
            t.op("aten::mm").launch("sgemm", us(100))
            t.sync()
    return t.json()


def write(path, content, age_s):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (1_700_000_000 - age_s, 1_700_000_000 - age_s))
    return path


@pytest.fixture
def unrelated(tmp_path):
    """Three traces without ranks, and a newer file that is none."""
    for name, age in (("b", 10), ("a", 30), ("c", 20)):
        write(tmp_path / f"{name}.json", trace(), age)
    write(tmp_path / "results.json", b'{"accuracy": 1}', 0)
    return tmp_path


def run(*words):
    done = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_the_newest_that_looks_like_a_trace_is_judged_and_said_first(unrelated):
    opened = open_run(unrelated)
    assert opened.unrelated == 4
    assert [window.trace_path.name for window in one_job(opened).windows] == ["b.json"]
    diagnosis = diagnose(opened)
    assert [len(diagnosis.ranks), diagnosis.run.windows[0].trace_path.name] == [1, "b.json"]
    first = run("report", unrelated).stdout.splitlines()[1]
    assert first.startswith("4 traces that are not known to be ranks of one run")
    assert first.endswith("b.json")
    assert "ranks" not in run("report", unrelated, "--full").stdout.splitlines()[2]


def test_show_and_compare_take_the_newest_and_info_lists_all(unrelated):
    shown = run("show", "steps", unrelated)
    assert "b.json" in shown.stdout
    assert "a.json" not in shown.stdout
    assert "4 traces that are not known to be ranks of one run" in shown.stderr
    listed = run("info", unrelated).stdout
    assert "Traces:      4, not known to be ranks of one run" in listed
    assert all(f"{name}.json" in listed for name in "abc")
    words = "4 traces that are not known to be ranks of one run; this is the newest,"
    assert f"Note: {unrelated}: {words}" in run("compare", unrelated, unrelated).stdout
    compared = json.loads(run("compare", unrelated, unrelated, "--format", "json").stdout)
    assert compared["a"]["path"] == compared["b"]["path"]
    # A pattern asks for each of them.
    assert (
        len(json.loads(run("show", "steps", unrelated / "[ab].json", "--format", "json").stdout))
        == 2
    )


def test_ranks_are_told_by_names_or_headers(tmp_path):
    for rank in range(3):
        write(tmp_path / "named" / f"x_rank{rank}.json", b"{}", 0)
        write(tmp_path / "headers" / f"{'cab'[rank]}.json", trace(rank=rank, world_size=3), 0)
        write(tmp_path / "windows" / f"iteration_{rank}" / "rank0.json", b"{}", 0)
        write(tmp_path / "jobs" / f"job-{'abc'[rank]}" / "rank0.json", b"{}", 0)
    assert [rank.rank for rank in open_run(tmp_path / "named").ranks] == [0, 1, 2]
    by_header = open_run(tmp_path / "headers")
    assert [rank.windows[0].trace_path.name for rank in by_header.ranks] == [
        "c.json",
        "a.json",
        "b.json",
    ]
    assert by_header.unrelated == 0
    (rank,) = open_run(tmp_path / "windows").ranks
    assert len(rank.windows) == 3
    assert open_run(tmp_path / "jobs").unrelated == 3


def test_the_same_rank_twice_is_not_one_job(tmp_path):
    for name, rank, size in (("a", 0, 2), ("b", 0, 2)):
        write(tmp_path / f"{name}.json", trace(rank=rank, world_size=size), 0)
    assert open_run(tmp_path).unrelated == 2


def test_several_files_are_one_run_if_they_are_ranks_and_reports_of_their_own_if_not(tmp_path):
    ranks = [write(tmp_path / f"rank{n}.json", trace(rank=n, world_size=2), 0) for n in range(2)]
    together = run("report", *ranks).stdout
    assert together.count("Verdict") == 1
    assert "2 ranks" in together
    other = write(tmp_path / "other" / "x.json", trace(), 0)
    apart = run("report", ranks[0], other).stdout
    assert apart.count("Verdict") == 2
    assert run("info", *ranks).stdout.count("File:") == 2
    assert run("compare", ranks[0], ranks[1], other).stdout.count("Parts of the step") == 2


def test_several_results_are_not_one_document(tmp_path, capsys):
    files = [write(tmp_path / f"{name}.json", trace(), 0) for name in "ab"]
    for verb in ("report", "info"):
        assert main([verb, *map(str, files), "--format", "json"]) == 2
        assert "--format json takes one result, and there are 2" in capsys.readouterr().err


def test_a_folder_with_too_many_files_asks_for_a_nearer_one(tmp_path, monkeypatch):
    monkeypatch.setattr(discover, "MOST_ENTRIES", 20)
    write(tmp_path / "deep" / "a.json", trace(), 0)
    assert open_run(tmp_path).unrelated == 0
    for number in range(30):
        write(tmp_path / "deep" / f"{number}.txt", b"", 0)
    with pytest.raises(UnreadableInputError, match="more than 20 files and folders: name a folder"):
        open_run(tmp_path)
    assert len(open_run(tmp_path / "deep" / "a.json").windows) == 1


def test_links_to_folders_are_not_followed(tmp_path):
    write(tmp_path / "inside" / "a.json", trace(), 0)
    (tmp_path / "inside" / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert len(open_run(tmp_path).windows) == 1
