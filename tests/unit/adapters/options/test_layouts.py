"""Files beside the run, where several windows' files are finished in another order."""

from __future__ import annotations

import pytest

from stepscope.adapters.options.layouts import (
    Destination,
    memory_overview,
    put_lone_file,
    put_snapshot,
    put_window,
)
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
    newer, older = finished(rank, 1), finished(rank, 0)
    put_window(layout, Destination(tmp_path), rank, newer)
    put_window(layout, Destination(tmp_path), rank, older, is_newest=False)
    assert "of window 1" in (tmp_path / SHARED[layout]).read_text()


@pytest.mark.parametrize(
    ("layout", "words", "names"),
    [
        (
            "sfm",
            {},
            {"trace-rank2-window0.json.gz", "trace-rank2-window1.json.gz"},
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
    destination = Destination(tmp_path, RankIdentity(2, 0, 4), words)
    put = [
        path
        for index in (1, 0)
        for path in put_window(layout, destination, rank, finished(rank, index), is_newest=False)
    ]
    found = {path.relative_to(tmp_path).as_posix() for path in put}
    assert {name for name in found if "pt.trace" not in name} == names


def test_files_of_no_window(tmp_path):
    source = tmp_path / "run" / "host_20260101T000000Z_rank1.pickle"
    source.parent.mkdir()
    source.write_text("content")
    first, second = Destination(tmp_path), Destination(tmp_path, RankIdentity(1, 1, 2))
    name = put_lone_file("sfm", first, "deepspeed_flops", source).name
    assert name == "profiler_ds.txt"
    assert put_lone_file("sfm", second, "deepspeed_flops", source).name == "profiler_ds-rank1.txt"
    wanted = "host_20260101T000000Z-rank1.pickle"
    assert put_lone_file("recipe", second, "snapshot", source).name == wanted
    assert put_lone_file("", first, "snapshot", source) is None
    assert put_lone_file("sfm", first, "snapshot", source) is None
    target = tmp_path / "deep" / "snapshot.pickle"
    assert put_snapshot(target, first, source) == target
    assert put_snapshot(target, second, source).name == "snapshot-rank1.pickle"
    assert target.read_text() == "content"


def test_an_overview_of_memory_has_what_others_add(tmp_path):
    rank = tmp_path / "run" / "rank00000"
    destination = Destination(tmp_path, overviews=(lambda: "theirs\n",))
    put_window("sfm", destination, rank, finished(rank, 0))
    text = (tmp_path / "profiler_list.dat").read_text()
    assert text.startswith("key_averages of window 0")
    assert text.endswith("\ntheirs\n")
    assert memory_overview().splitlines()[0] in text
