"""The guide of SFM: a decorated main, its flags, its files, its example of a schedule."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

from click.testing import CliRunner
from tests.support.fake_nsys import arguments_of, make_nsys
from tests.support.guides import environment, run_inline
from tests.support.runs import manifest_of

from stepscope import open_run
from stepscope.adapters.external import nsys
from stepscope.commands.report import command as report
from stepscope.commands.run import command as run

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


# -- "High-level profiling": nsys around torchrun --------------------------------------------------

GUIDE = (
    "sudo nsys profile -t cuda,mpi --gpu-metrics-device all -o nsight_report "
    "--cuda-memory-usage=true --run-as me torchrun train.py"
)
OURS = ["--nsys", "--nsys-trace", "cuda,mpi", "--nsys-gpu-metrics", "all", "--nsys-memory"]
RANKS = """
import torch
from torch import nn

torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
torch.distributed.destroy_process_group()
"""


def options_of(words):
    """The options of `nsys profile` by name, however they are spelled, and what stands before."""
    before, _, rest = " ".join(words).partition(" profile ")
    found, words = {}, shlex.split(rest)
    short = {"-t": "--trace", "-o": "--output"}
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).partition("=")
        found[short.get(name, name)] = value if equals else words.pop(0)
    return before.split(), found


def test_the_guides_nsys_command_is_built_from_options(monkeypatch, tmp_path):
    make_nsys(tmp_path, version="2023.3")  # the singular of its option is as old as the guide
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(nsys, "_is_no_root", lambda: True)
    options = [*OURS, "--nsys-run-as", "me", "--nsys-range", "all", "--dry-run"]
    done = CliRunner().invoke(run, [*options, "--", "torchrun", "train.py"])
    assert done.exit_code == 0, done.output
    words = shlex.split(done.stdout)
    assert words[-2:] == ["torchrun", "train.py"]
    (first, *_), wanted = options_of(shlex.split(GUIDE))
    (ours_first, *_, program), found = options_of(words)
    assert first == ours_first == "sudo"
    assert program == str(tmp_path / "nsys")
    output = found.pop("--output")
    assert wanted.pop("--output")
    assert output.endswith("/report")
    assert found == wanted


def test_torchrun_below_nsys_leaves_a_report_that_opens(monkeypatch, tmp_path):
    make_nsys(tmp_path / "bin")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ours = [sys.executable, "-m", "stepscope", "run", "--no-report", *OURS, "--"]
    done = subprocess.run(
        [*ours, *torchrun, "--nproc-per-node=2", "train.py"],
        cwd=tmp_path,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--gpu-metrics-devices=all" in arguments_of(tmp_path / "bin")
    found = open_run(tmp_path / "profiles")
    assert [rank.manifest.steps for rank in found.ranks] == [6, 6]
    (recording,) = found.external
    (file,) = recording.files
    assert file.suffix == ".nsys-rep"
    monkeypatch.setenv("PATH", path)
    told = CliRunner().invoke(report, [str(file)])
    assert told.exit_code == 0, told.output
    assert "2 steps" in told.output
