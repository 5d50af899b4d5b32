"""The guide of SFM: a decorated main, its flags, its files, its example of a schedule."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys

import click
import pytest
import torch
from click.testing import CliRunner
from tests.support.fake_nsys import arguments_of, make_nsys
from tests.support.guides import environment, run_inline, run_script
from tests.support.launching import ALONE_UNDER_DEEPSPEED, free_port
from tests.support.runs import manifest_of, rank_directory, trace_document
from tests.support.training import SmallTraining, batches
from tests.support.warm_python import warm_python

import stepscope
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
    assert "Host, peak resident:" in overview
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


def test_the_end_prints_the_table_that_it_writes(monkeypatch, capsys, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, ["--profiling"])
    printed = capsys.readouterr().out
    written = (tmp_path / "prof" / "profiler_list.dat").read_text().splitlines()
    lines = printed.splitlines()
    assert lines[:24] == written[:24]
    assert lines[0].startswith("sorted by ")
    assert re.fullmatch(r"… \d+ more", lines[24])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--ptensorboard"], "nothing is recorded: --ptensorboard needs --profiling"),
        (["--debug"], "nothing is recorded: --debug needs --profiling"),
        (["--wait", "2", "--active", "1"], "nothing is recorded: --wait, --active need "),
        (["--steps", "3"], None),
    ],
)
def test_flags_without_the_one_that_profiles_say_what_is_missing(
    monkeypatch, capsys, tmp_path, flags, said
):
    script = SCRIPT.replace(
        'parser.add_argument("--steps"',
        'parser.add_argument("--debug", action="store_true")\n'
        '        parser.add_argument("--steps"',
    )
    run_inline(monkeypatch, tmp_path, script, flags)
    error = capsys.readouterr().err
    assert said in error if said else error == ""
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_the_scripts_help_shows_our_flags(tmp_path):
    result = run_script(tmp_path, SCRIPT, ["--help"])
    assert result.returncode == 0
    own, _, ours = result.stdout.partition("profiling with stepscope (sfm)")
    assert "--steps" in own
    for flag in ("--profiling", "--ptensorboard", "--prof_dir", "--wait", "--debug"):
        assert flag in ours
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
    options = [*OURS, "--nsys-run-as", "me", "--nsys-range", "all", "--dry-run", "-o", "nsight"]
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
    assert done.stderr == "stepscope: afterwards, the report is put in nsight.nsys-rep as well\n"


@pytest.mark.slow
def test_torchrun_below_nsys_leaves_a_report_that_opens(monkeypatch, tmp_path):
    make_nsys(tmp_path / "bin")
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    (tmp_path / "train.py").write_text(RANKS)
    torchrun = [warm_python(), "-m", "torch.distributed.run", "--standalone"]
    ours = [sys.executable, "-m", "stepscope", "run", "--no-report", *OURS]
    ours += ["-o", "nsight_report", "--"]
    done = subprocess.run(
        [*ours, *torchrun, "--nproc-per-node=2", "train.py"],
        cwd=tmp_path,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=250,
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
    named = tmp_path / "nsight_report.nsys-rep"
    assert named.read_bytes() == file.read_bytes()
    assert f"nsys: next: stepscope report {named}" in done.stderr


# -- the handler that can be extended to any other format -----------------------------------------


def test_a_handler_of_ones_own_writes_another_format(tmp_path):
    """The guide's handler writes a table of metrics; one for torch.profiler works as it is."""
    seen = []

    def custom_trace_handler(prof):
        seen.append(prof.step_num)
        rows = [(event.key, event.count) for event in prof.key_averages()]
        with (tmp_path / "metrics.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("operator", "calls"), *rows])

    parser = stepscope.add_arguments(argparse.ArgumentParser(), dialect="sfm")
    args = parser.parse_args(["--profiling", "--prof_dir", str(tmp_path / "prof")])
    training = SmallTraining()
    with stepscope.Profiler.from_args(args, on_trace_ready=custom_trace_handler) as profiler:
        for batch in profiler.watch(batches(12)):
            with torch.profiler.record_function("encoder"):
                training.step(batch)
    assert seen == [10]
    rows = list(csv.reader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert ["aten::mm", "15"] in rows  # five products in each of three steps
    assert "encoder" in (tmp_path / "prof" / "profiler_list.dat").read_text()


def trace_events(path):
    document = json.loads(path.read_bytes()) if path.suffix == ".json" else trace_document(path)
    return document["traceEvents"]


def test_the_list_is_sorted_by_the_time_of_each_operator(monkeypatch, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, ["--profiling"])
    text = (tmp_path / "prof" / "profiler_list.dat").read_text()
    column = re.match(r"sorted by (\w+)", text).group(1)
    path = rank_directory(tmp_path / "prof") / "window-0000" / "key_averages.csv"
    rows = list(csv.DictReader(path.read_text().splitlines()))
    kind = {"self_cpu_time_total": "self_cpu_ns", "self_device_time_total": "self_device_ns"}
    times = [int(row[kind[column]]) for row in rows]
    assert times[0] > 0
    assert times == sorted(times, reverse=True)
    listed = re.findall(r"^(\S+) +[\d.]+%", text, re.MULTILINE)
    names = [row["name"] for row in rows if " " not in row["name"]]
    assert len(listed) > 5
    assert listed == [name for name in names if name in listed]


HANDED = SCRIPT.replace(
    '@stepscope.profiled(dialect="sfm")',
    """def handler(prof):
        print("handled", prof.step_num)

    @stepscope.profiled(dialect="sfm", on_trace_ready=handler)""",
)


def test_the_decorator_takes_handlers(monkeypatch, capsys, tmp_path):
    run_inline(monkeypatch, tmp_path, HANDED, ["--profiling"])
    assert "handled 10" in capsys.readouterr().out


def test_the_click_decorator_takes_them_too(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    seen = []

    @click.command()
    @stepscope.click_options("sfm", on_trace_ready=lambda prof: seen.append(prof.step_num))
    def main(profiler):
        training = SmallTraining()
        with profiler:
            for batch in profiler.watch(batches(12)):
                training.step(batch)

    done = CliRunner().invoke(main, ["--profiling"])
    assert done.exit_code == 0, done.output
    assert seen == [10]
    wrong = CliRunner().invoke(main, ["--profiling", "--active", "0"])
    assert wrong.exit_code == 2
    assert "--active 0 is too small: give 1 or more" in wrong.output


# -- DeepSpeed ------------------------------------------------------------------------------------

DEEPSPEED = """
    import argparse
    import sys

    import torch

    import deepspeed
    import stepscope

    @stepscope.profiled(dialect="sfm")
    def main(profiler):
        parser = argparse.ArgumentParser()
        parser.add_argument("--strategy", choices=["DDP", "Zero"])
        parser.add_argument("--debug", action="store_true")
        args = parser.parse_args()
        assert args.strategy == "Zero", args
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Linear(32, 4))
        engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=model.parameters(),
            config={
                "train_micro_batch_size_per_gpu": 8,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
                "zero_optimization": {"stage": 1},
            },
        )
        for batch in profiler.watch([torch.randn(8, 16) for _ in range(12)]):
            with profiler.phase("accelerator.train_step"):
                engine.backward(engine(batch).square().mean())
                engine.step()
        torch.distributed.destroy_process_group()

    main()
"""
needs_deepspeed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="deepspeed is not installed"
)


@needs_deepspeed
@pytest.mark.parametrize("debug", [[], ["--debug"]], ids=["plain", "debug"])
def test_with_deepspeed_its_profile_and_its_memory(tmp_path, debug):
    flags = ["--profiling", "--ptensorboard", "--prof_dir", "./prof_other", "--strategy=Zero"]
    port = str(free_port())
    result = run_script(
        tmp_path,
        DEEPSPEED,
        [*flags, *debug],
        timeout=550,
        MASTER_PORT=port,
        **ALONE_UNDER_DEEPSPEED,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    folder = tmp_path / "prof_other"
    profile = (folder / "profiler_ds.txt").read_text()
    assert "DeepSpeed Flops Profiler" in profile
    assert re.search(rf"params per GPU: +{16 * 32 + 32 + 32 * 4 + 4} ", profile)
    assert "Detailed Profile per GPU" in profile
    # The engine is followed without being told, and every part of the iteration is timed.
    found = dict(re.findall(r"^(fwd|bwd|step|iter) latency: +([\d.]+) ms$", profile, re.MULTILINE))
    assert found.keys() == {"fwd", "bwd", "step", "iter"}
    parts = sum(float(found[part]) for part in ("fwd", "bwd", "step"))
    assert float(found["iter"]) == pytest.approx(parts, abs=0.02)
    _, _, overview = (folder / "profiler_list.dat").read_text().partition("Memory overview")
    assert "DeepSpeed, see_memory_usage" in overview
    assert "CPU Virtual Memory:" in overview
    assert steps_of(folder / "trace-rank0-window0.json") == [7, 8, 9]
    # The state of memory is printed as it goes, forward and backward, with --debug only.
    lines = re.findall(r"^After (\w+) of step (\d+)$", result.stdout, re.MULTILINE)
    wanted = [(part, str(step)) for step in range(12) for part in ("forward", "backward", "step")]
    assert lines == (wanted if debug else [])
    kept = rank_directory(folder) / "memory_deepspeed.txt"
    assert kept.exists() == bool(debug)
    steps = open_run(folder).ranks[0].steps
    assert {"forward", "backward", "optimizer"} <= {
        name.rpartition("/")[2] for name in steps[3].phases
    }
