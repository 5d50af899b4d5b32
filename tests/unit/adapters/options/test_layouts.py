"""Files beside the run, where several windows' files are finished in another order."""

from __future__ import annotations

import sys

import pytest
from tests.support.placing import placing

from stepscope.adapters.options.layouts import memory_overview
from stepscope.capture.ranks import RankIdentity
from stepscope.run.manifest import ArtifactRecord, WindowRecord

SHARED = {
    "fsdp-qlora": "model_train-0/model-train-chrome-trace.json.gz",
    "recipe": "trace.json.gz",
    "sfm": "profiler_list.dat",
}


def finished(folder, index):
    """A rank's folder with the files of one window."""
    artifacts = []
    for kind, name in (("trace", "trace.json.gz"), ("key_averages", "key_averages.txt")):
        path = folder / f"window-{index:04d}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{kind} of window {index}")
        artifacts.append(ArtifactRecord(kind, f"{path.parent.name}/{name}", 1, "d"))
    first = 10 * index
    return WindowRecord(index, "complete", first, first + 2, artifacts=tuple(artifacts))


@pytest.mark.parametrize("layout", SHARED)
def test_what_windows_share_is_the_newest_ones_in_whatever_order_they_come(layout, tmp_path):
    rank = tmp_path / "run" / "rank00000"
    files = placing(tmp_path, layout)
    for window in (finished(rank, 1), finished(rank, 0)):
        files.put_window(window)
    assert "of window 1" in (tmp_path / SHARED[layout]).read_text()


@pytest.mark.parametrize(
    ("layout", "words", "names"),
    [
        (
            "sfm",
            {},
            {
                "trace-rank2-window0.json.gz",
                "trace-rank2-window1.json.gz",
                "profiler_list-rank2.dat",
            },
        ),
        (
            "torchtitan",
            {"steps_before": "100", "leaf": "replica"},
            {
                "iteration_103/replica/rank2_trace.json.gz",
                "iteration_113/replica/rank2_trace.json.gz",
            },
        ),
        (
            "torchtune",
            {},
            {"iteration_3/rank2_key_averages.txt", "iteration_13/rank2_key_averages.txt"},
        ),
    ],
)
def test_what_each_window_has_for_itself(layout, words, names, tmp_path):
    rank = tmp_path / "run" / "rank00002"
    files = placing(tmp_path, layout, RankIdentity(2, 0, 4), words=words)
    put = [path for index in (1, 0) for path in files.put_window(finished(rank, index))]
    found = {path.relative_to(tmp_path).as_posix() for path in put}
    assert {name for name in found if "pt.trace" not in name} == names


def test_files_of_no_window(tmp_path):
    target = tmp_path / "deep" / "snapshot.pickle"
    for identity in (RankIdentity(), RankIdentity(1, 1, 2)):
        name = f"host_20260101T000000Z_rank{identity.rank}.pickle"
        source = tmp_path / "run" / f"rank{identity.rank:05d}" / name
        source.parent.mkdir(parents=True)
        source.write_text(f"content {identity.rank}")
        for kind in ("snapshot", "deepspeed_flops"):
            for layout in ("recipe", "sfm", ""):
                files = placing(tmp_path, layout, identity, snapshot_path=target)
                files.put_file(ArtifactRecord(kind, name))
    found = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert found == {
        "host_20260101T000000Z.pickle",
        "host_20260101T000000Z-rank1.pickle",
        "profiler_ds.txt",
        "profiler_ds-rank1.txt",
    }
    assert target.read_text() == "content 0"
    assert target.with_name("snapshot-rank1.pickle").read_text() == "content 1"


def test_an_overview_of_memory_has_what_others_add(tmp_path):
    rank = tmp_path / "run" / "rank00000"
    placing(tmp_path, "sfm", overviews=(lambda: "theirs\n",)).put_window(finished(rank, 0))
    text = (tmp_path / "profiler_list.dat").read_text()
    assert text.startswith("key_averages of window 0")
    assert text.endswith("\ntheirs\n")
    assert memory_overview().splitlines()[0] in text


def test_an_overview_of_memory_imports_nothing(monkeypatch):
    """It is made on the training thread, in a training that may be recorded."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert "\nHost, resident: " in memory_overview()
