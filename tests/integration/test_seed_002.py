"""The guide of SFM: a decorated main, its flags, its files, its example of a schedule."""

from __future__ import annotations

import json

from tests.support.guides import run_inline
from tests.support.runs import manifest_of

from stepscope import open_run

SCRIPT = """
    import argparse

    from tests.support.training import SmallTraining, batches

    import stepscope

    @stepscope.profiled(dialect="sfm")
    def main(profiler):
        parser = argparse.ArgumentParser()
        parser.add_argument("--steps", type=int, default=12)
        args = parser.parse_args()
        training = SmallTraining()
        for batch in profiler.watch(batches(args.steps)):
            with profiler.phase("accelerator.train_step"):
                training.step(batch)

    main()
"""


def steps_of(path):
    events = json.loads(path.read_bytes())["traceEvents"]
    names = {event["name"] for event in events if event.get("cat") == "user_annotation"}
    return sorted(int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#"))


def test_the_guides_command_writes_into_its_folder(monkeypatch, tmp_path):
    flags = ["--profiling", "--ptensorboard", "--prof_dir", "./prof_other"]
    run_inline(monkeypatch, tmp_path, SCRIPT, flags)
    folder = tmp_path / "prof_other"
    assert steps_of(folder / "trace-rank0-window0.json") == [7, 8, 9]
    (board,) = (folder / "tensorboard").iterdir()
    assert board.name.endswith(".pt.trace.json")
    table, _, overview = (folder / "profiler_list.dat").read_text().partition("Memory overview")
    assert table.startswith("sorted by self_")
    assert "accelerator.train_step" in table
    assert "CPU mem" in table
    assert "Host, resident at most:" in overview
    (window,) = manifest_of(folder).windows
    kinds = {artifact.kind for artifact in window.artifacts if not artifact.problem}
    assert {"trace", "key_averages", "stacks", "tensorboard"} <= kinds
    options = open_run(folder).job.options
    wanted = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
    assert all(options[name] for name in wanted)


def test_the_default_folder_and_no_tensorboard(monkeypatch, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, ["--profiling"])
    assert (tmp_path / "prof" / "profiler_list.dat").exists()
    assert not (tmp_path / "prof" / "tensorboard").exists()


def test_the_guides_example_of_a_schedule(monkeypatch, tmp_path):
    flags = [
        "--wait",
        "5",
        "--warmup",
        "1",
        "--active",
        "3",
        "--repeat",
        "2",
        "--skip_first",
        "10",
        "--steps",
        "40",
    ]
    run_inline(monkeypatch, tmp_path, SCRIPT, ["--profiling", *flags])
    folder = tmp_path / "prof"
    assert steps_of(folder / "trace-rank0-window0.json") == [16, 17, 18]
    assert steps_of(folder / "trace-rank0-window1.json") == [25, 26, 27]
    assert len(list(folder.glob("trace-*.json"))) == 2


def test_without_the_flag_nothing_is_profiled(monkeypatch, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, ["--steps", "3"])
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
