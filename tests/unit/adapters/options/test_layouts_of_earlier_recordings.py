"""Files of an earlier recording: which are moved, and that nothing else is."""

from __future__ import annotations

import pytest
from tests.support.placing import placing

from stepscope.capture.ranks import RankIdentity

WORDS = {"model_name": "org/llama", "train_type": "qlora"}


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def names_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("layout", "rank", "world", "stale", "kept"),
    [
        pytest.param(
            "fsdp-qlora",
            0,
            1,
            ["llama_qlora-0/llama-qlora-stacks.txt", "llama_qlora-1/llama-qlora-key_averages.txt"],
            ["llama_qlora-0/notes.txt", "other_qlora-0/other-qlora-stacks.txt"],
            id="fsdp-qlora",
        ),
        pytest.param(
            "fsdp-qlora",
            0,
            2,
            ["llama_qlora-0/llama-qlora-chrome-trace.json.gz"],
            ["llama_qlora-1/llama-qlora-chrome-trace.json.gz"],
            id="the other rank's are its own affair",
        ),
        pytest.param(
            "recipe",
            0,
            2,
            ["trace.json", "trace-rank2.json", "trace-rank3.json.gz"],
            ["trace-rank1.json", "traced.json", "host_1.pickle"],
            id="recipe",
        ),
        pytest.param(
            "sfm",
            1,
            2,
            ["trace-rank1-window0.json", "trace-rank1-window1.json", "profiler_list-rank1.dat"],
            ["trace-rank0-window0.json", "profiler_list.dat", "profiler_ds.txt"],
            id="sfm, second rank",
        ),
        pytest.param(
            "sfm",
            0,
            1,
            ["trace-rank0-window0.json", "trace-rank7-window0.json", "profiler_ds-rank7.txt"],
            ["report.dat"],
            id="sfm, first rank",
        ),
        pytest.param("torchtune", 0, 1, [], ["iteration_1/rank0_stacks.txt"], id="no fixed names"),
    ],
)
def test_what_a_new_recording_would_not_replace_is_moved(
    tmp_path, layout, rank, world, stale, kept
):
    write(tmp_path, *stale, *kept)
    identity = RankIdentity(rank, rank, world)
    placing(tmp_path, layout, identity, words=WORDS).move_earlier()
    found = names_in(tmp_path)
    assert set(kept) <= found
    moved = {name for name in found if "earlier/" in name}
    # Those of one folder go to one other folder in it.
    folders = {name.rpartition("/")[0] for name in moved}
    assert len(folders) == len({name.rpartition("/")[0] for name in stale})
    assert {name.rpartition("/")[2] for name in moved} == {
        name.rpartition("/")[2] for name in stale
    }
    assert found == set(kept) | moved
    assert {(tmp_path / name).read_text() for name in moved} == set(stale)


def test_numbers_in_the_name_of_the_model_are_no_ranks(tmp_path):
    stale = ["Llama-2-7b_qlora-3/Llama-2-7b-qlora-stacks.txt"]
    kept = ["Llama-2-7b_qlora-1/Llama-2-7b-qlora-stacks.txt", "Llama-2-7b_qlora-3/notes.txt"]
    write(tmp_path, *stale, *kept)
    words = {"model_name": "meta/Llama-2-7b", "train_type": "qlora"}
    placing(tmp_path, "fsdp-qlora", RankIdentity(0, 0, 2), words=words).move_earlier()
    assert {name for name in names_in(tmp_path) if "earlier/" not in name} == set(kept)


def test_two_moves_within_a_second_keep_both(tmp_path):
    for text in ("first", "second"):
        (tmp_path / "trace.json").write_text(text)
        placing(tmp_path, "recipe").move_earlier()
    kept = [path.read_text() for path in (tmp_path / "earlier").rglob("trace.json")]
    assert sorted(kept) == ["first", "second"]
