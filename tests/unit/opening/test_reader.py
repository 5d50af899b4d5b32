"""Opening runs: directories of ours, of others, single files, globs, and hostile ones."""

from __future__ import annotations

import dataclasses
import shutil

import orjson
import pytest

from stepscope import open_run
from stepscope.errors import UnreadableInputError
from stepscope.opening.reader import open_window
from stepscope.run.manifest import (
    ArtifactRecord,
    JobRecord,
    RankManifest,
    WindowRecord,
    read_record,
    write_record,
)
from stepscope.run.step_record import StepRecord, encode_step


def make_run(root, name="run", created_ns=1, ranks=(0,), trace_path="window-0000/trace.json.gz"):
    home = root / name
    for rank in ranks:
        directory = home / f"rank{rank:05d}"
        (directory / "window-0000").mkdir(parents=True)
        (directory / "window-0000" / "trace.json.gz").write_bytes(b"x")
        (directory / "steps.jsonl").write_bytes(encode_step(StepRecord(0, 1, 2)))
        window = WindowRecord(
            0, "complete", 0, 1, 2, artifacts=(ArtifactRecord("trace", trace_path),)
        )
        write_record(directory / "manifest.json", RankManifest(rank, windows=(window,)))
    write_record(home / "run.json", JobRecord(name, created_ns, world_size=len(ranks)))
    return home


def test_a_run_directory_opens_with_its_ranks_windows_and_steps(tmp_path):
    home = make_run(tmp_path, ranks=(0, 1, 11))
    run = open_run(home)
    assert run.path == home
    assert run.job.name == "run"
    assert [rank.rank for rank in run.ranks] == [0, 1, 11]
    assert [window.trace_path.parent.parent.name for window in run.windows] == [
        "rank00000", "rank00001", "rank00011",
    ]  # fmt: skip
    assert run.ranks[0].steps == (StepRecord(0, 1, 2),)
    assert run.problems == ()


@pytest.mark.parametrize("inside", [".", "rank00000", "rank00000/window-0000"])
def test_a_place_inside_a_run_opens_the_run(tmp_path, inside):
    home = make_run(tmp_path)
    assert open_run(home / inside).path == home


def test_a_directory_of_runs_opens_the_newest(tmp_path):
    make_run(tmp_path, "a", created_ns=5)
    newest = make_run(tmp_path, "b", created_ns=9)
    make_run(tmp_path, "c", created_ns=7)
    assert open_run(tmp_path).path == newest
    assert open_run(tmp_path).others == 2
    assert open_run(newest).others == 0


def test_a_trace_of_a_run_is_that_window_of_its_ranks_with_their_records(tmp_path):
    home = make_run(tmp_path, ranks=(0, 1))
    trace = next((home / "rank00001").rglob("trace.json*"))
    run = open_window(trace)
    assert run is not None
    assert (run.path, run.job, [one.rank for one in run.ranks]) == (
        home,
        open_run(home).job,
        [0, 1],
    )
    assert run.ranks[1].steps == open_run(home).ranks[1].steps != ()
    # Of several windows, the one that was named.
    manifest = home / "rank00001" / "manifest.json"
    first = read_record(manifest, RankManifest).windows[0]
    (home / "rank00001" / "window-0001").mkdir()
    later = home / "rank00001" / "window-0001" / trace.name
    later.write_bytes(trace.read_bytes())
    artifact = ArtifactRecord("trace", f"window-0001/{trace.name}")
    second = dataclasses.replace(first, index=1, artifacts=(artifact,))
    write_record(manifest, RankManifest(1, windows=(first, second)))
    for file, index in ((trace, 0), (later, 1)):
        run = open_window(file)
        assert run is not None
        assert [(one.rank, one.index) for one in run.windows if one.rank] == [(1, index)]
    # A file that the run did not record is a trace of its own, and so is one elsewhere.
    stray = home / "rank00001" / "window-0001" / "mine.json"
    stray.write_bytes(trace.read_bytes())
    copy = tmp_path / "copy.json"
    copy.write_bytes(trace.read_bytes())
    for file in (stray, copy, home, tmp_path / "none.json", "s3://bucket/trace.json"):
        assert open_window(file) is None


def make_empty_run(root, name, created_ns, state="finished"):
    home = make_run(root, name, created_ns=created_ns)
    directory = home / "rank00000"
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "steps.jsonl").touch()
    write_record(directory / "manifest.json", RankManifest(0, state=state, ended="no step"))
    return home


def test_a_newer_run_that_recorded_nothing_is_left_out_and_counted(tmp_path):
    make_run(tmp_path, "a", created_ns=5)
    full = make_run(tmp_path, "b", created_ns=6)
    empty = make_empty_run(tmp_path, "c", 7)
    make_empty_run(tmp_path, "d", 8)
    run = open_run(tmp_path)
    assert (run.path, run.others, run.empty) == (full, 1, 2)
    assert open_run(empty).path == empty
    assert open_run(full).empty == 0
    # What only an unreadable manifest says, or what may still record, is opened all the same.
    (empty / "rank00000" / "manifest.json").write_text("{")
    run = open_run(tmp_path)
    assert (run.path, run.others, run.empty) == (empty, 2, 1)
    running = make_empty_run(tmp_path, "e", 9, state="running")
    assert open_run(tmp_path).path == running


@pytest.mark.parametrize(
    "left",
    ["rank00000/snapshots", "rank00000/window-0000", "rank00000/steps.ring", "external"],
)
def test_a_run_with_anything_to_show_is_not_empty(tmp_path, left):
    make_run(tmp_path, "a", created_ns=5)
    newest = make_empty_run(tmp_path, "b", 6)
    (newest / left).mkdir()
    assert open_run(tmp_path).path == newest


def test_of_runs_that_recorded_nothing_the_newest_opens(tmp_path):
    make_empty_run(tmp_path, "a", 5)
    newest = make_empty_run(tmp_path, "b", 6)
    run = open_run(tmp_path)
    assert (run.path, run.others, run.empty) == (newest, 1, 0)


def test_a_run_without_run_json_opens_and_says_so(tmp_path):
    home = make_run(tmp_path)
    (home / "run.json").unlink()
    run = open_run(home)
    assert run.job is None
    assert "run.json" in run.problems[0]
    assert len(run.windows) == 1


def test_a_broken_manifest_costs_its_windows_and_keeps_its_steps(tmp_path):
    home = make_run(tmp_path, ranks=(0, 1))
    (home / "rank00001" / "manifest.json").write_bytes(b"{")
    run = open_run(home)
    assert len(run.problems) == 1
    assert [len(rank.windows) for rank in run.ranks] == [1, 0]
    assert run.ranks[1].manifest.state == "unknown"
    assert run.ranks[1].steps == (StepRecord(0, 1, 2),)


@pytest.mark.parametrize(
    "path",
    [
        "../../secret.json.gz",
        "/etc/hostname",
        "window-0000/../../../secret.json.gz",
        "link.json.gz",
    ],
)
def test_a_manifest_cannot_point_outside_its_rank(tmp_path, path):
    (tmp_path / "secret.json.gz").write_bytes(b"x")
    home = make_run(tmp_path, trace_path=path)
    (home / "rank00000" / "link.json.gz").symlink_to(tmp_path / "secret.json.gz")
    assert open_run(home).windows[0].trace_path is None


def test_odd_paths_in_a_manifest_do_not_raise(tmp_path):
    home = make_run(tmp_path, trace_path="a\x00b")
    assert open_run(home).windows[0].trace_path is None


def test_a_trace_with_a_problem_is_not_offered(tmp_path):
    home = make_run(tmp_path)
    path = home / "rank00000" / "manifest.json"
    data = orjson.loads(path.read_bytes())
    data["windows"][0]["artifacts"][0]["problem"] = "cut off"
    path.write_bytes(orjson.dumps(data))
    assert open_run(home).windows[0].trace_path is None


def test_loose_traces_become_ranks_by_their_names(tmp_path):
    for name in ("rank0_trace.json", "rank1_trace.json", "rank10_trace.json.gz", "notes.txt"):
        (tmp_path / name).write_bytes(b"{}")
    run = open_run(tmp_path)
    assert [rank.rank for rank in run.ranks] == [0, 1, 10]
    assert run.job is None


def test_a_tensorboard_directory_counts_workers_and_orders_windows(tmp_path):
    for worker in ("node1_100", "node1_101"):
        for moment in (1724203468009469317, 1724203499009469317):
            (tmp_path / f"{worker}.{moment}.pt.trace.json.gz").write_bytes(b"")
    (tmp_path / "events.out.tfevents.1.node1").write_bytes(b"")
    run = open_run(tmp_path)
    assert [(rank.rank, len(rank.windows)) for rank in run.ranks] == [(0, 2), (1, 2)]
    first = run.ranks[0].windows
    assert "1724203468009469317" in first[0].trace_path.name
    assert [window.index for window in first] == [0, 1]


def test_a_single_file_and_a_glob_open(tmp_path):
    for name in ("a.json", "b.json", "c.txt"):
        (tmp_path / name).write_bytes(b"{}")
    assert len(open_run(tmp_path / "a.json").windows) == 1
    assert len(open_run(str(tmp_path / "*.json")).windows) == 2
    assert len(open_run(tmp_path / "[ab].json").windows) == 2


def test_nothing_there_says_what_was_looked_for(tmp_path):
    with pytest.raises(UnreadableInputError, match="no such file"):
        open_run(tmp_path / "missing")
    with pytest.raises(UnreadableInputError, match=r"no run .* and no trace"):
        open_run(tmp_path)
    with pytest.raises(UnreadableInputError, match="no trace"):
        open_run(str(tmp_path / "*.json"))


def test_the_records_are_frozen(tmp_path):
    run = open_run(make_run(tmp_path))
    with pytest.raises(dataclasses.FrozenInstanceError):
        run.path = None
