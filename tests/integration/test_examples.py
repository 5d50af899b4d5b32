"""The examples run as they stand, and leave what they promise; README lists every one of them."""

from __future__ import annotations

import gzip
import json
import os
import runpy
import subprocess
import sys
import time
from collections import Counter

import pytest
import torch
from tests.support.project import ROOT
from tests.support.warm_python import VARIABLES, warm_python

import stepscope
from stepscope import open_run
from stepscope.commands.main import main

pytest.importorskip("torch")
EXAMPLES = ROOT / "examples"


@pytest.fixture
def run_here(monkeypatch, tmp_path):
    """Runs an example in this process, which saves the time of importing torch."""

    def run(name, *flags):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *flags])
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        except SystemExit as ended:  # click ends so
            assert not ended.code

    return run


@pytest.fixture
def in_the_path(monkeypatch):
    """For examples that start other processes: these find the package as this one does."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("PYTHON", warm_python())
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def the_rank(folder):
    (rank,) = open_run(folder).ranks
    assert rank.manifest.state == "finished"
    assert rank.manifest.problems == ()
    return rank


def recorded(rank):
    return [(window.first_step, window.last_step) for window in rank.manifest.windows]


def test_the_list_is_complete():
    listed = {
        line.split("`")[1]
        for line in (EXAMPLES / "README.md").read_text().splitlines()
        if line.startswith("| `")
    }
    assert listed == {
        path.name
        for path in EXAMPLES.iterdir()
        if path.suffix in (".py", ".sh", ".ipynb", ".yml", ".json")
    }


def test_flags(run_here, tmp_path, capsys):
    run_here("flags.py")
    assert "after 50 steps" in capsys.readouterr().out
    assert not any(tmp_path.iterdir()), "recorded without being asked to"

    run_here("flags.py", "--enable-profiling", "--profiler-output-dir", "traces")
    assert recorded(the_rank(tmp_path / "traces")) == [(7, 9)]


def test_click_options(run_here, tmp_path):
    pytest.importorskip("click")
    run_here("click_options.py", "--steps", "15", "--profile", "--profile-output-dir", "traces")
    rank = the_rank(tmp_path / "traces")
    assert len(rank.steps) == 15
    assert recorded(rank) == [(7, 9)]


def test_the_decorator(run_here, tmp_path):
    run_here("decorator.py", "--steps", "12", "--profiling", "--prof_dir", "traces")
    assert (tmp_path / "traces" / "profiler_list.dat").stat().st_size > 0
    assert (tmp_path / "traces" / "trace-rank0-window0.json").is_file()


def test_torch_profiler(run_here, tmp_path, capsys):
    run_here("torch_profiler.py")
    assert "forward_pass" in capsys.readouterr().out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert recorded(the_rank(tmp_path / "profiles")) == [(2, 4)]


def test_windows_on_demand(run_here, tmp_path, monkeypatch):
    # A step takes what it sleeps, and no more: on a busy machine any of them may be slow.
    now_ns, sleep = [0], time.sleep

    def sleep_by_the_clock(seconds):
        now_ns[0] += round(seconds * 1e9)
        sleep(0.001)

    monkeypatch.setattr("stepscope.capture.steps.core.perf_counter_ns", lambda: now_ns[0])
    monkeypatch.setattr(time, "sleep", sleep_by_the_clock)
    run_here("on_demand.py")
    windows = the_rank(tmp_path / "profiles").manifest.windows
    by_cause = {one.cause: one for one in windows}
    slow, called = by_cause["slow step"], by_cause["code"]
    assert [one.last_step - one.first_step + 1 for one in (slow, called)] == [2, 1]
    # The writing thread looks for slow steps, so some may pass by this clock, and the call's come.
    assert slow.first_step > 30
    assert 45 < called.first_step < 50


def test_the_reader_of_runs(run_here, tmp_path, capsys):
    options = {"output_dir": tmp_path / "profiles", "activities": "cpu"}
    model = torch.nn.Linear(128, 128)
    with stepscope.Profiler(**options) as profiler:
        for _ in range(12):
            model(torch.randn(64, 128)).square().mean().backward()
            profiler.step()
    run_here("read_a_run.py", "profiles")
    printed = capsys.readouterr().out
    assert "rank 0: 12 steps" in printed
    assert "window-0000: steps [7, 8, 9]" in printed
    totals: Counter[str] = Counter()
    (trace,) = (tmp_path / "profiles").glob("*/rank00000/window-0000/trace*.json*")
    for event in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]:
        if event.get("cat") == "cpu_op":
            totals[event["name"]] += event["dur"]
    # Polars cuts long names.
    assert all(f"│ {name[:20]}" in printed for name, _ in totals.most_common(5)), printed


def test_the_short_script(tmp_path, in_the_path):
    ended = subprocess.run(
        ["bash", str(EXAMPLES / "profile_short.sh"), "traces", "--lr", "0.1"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "after 50 steps" in ended.stdout
    assert "Verdict" in ended.stdout
    assert "tensorboard --logdir traces" in ended.stdout
    assert recorded(the_rank(tmp_path / "traces")) == [(7, 9)]
    assert len(list((tmp_path / "traces").glob("rank0_*.pt.trace.json.gz"))) == 1


@pytest.mark.parametrize("launcher", ["python", pytest.param("torchrun", marks=pytest.mark.slow)])
def test_an_unmodified_script(launcher, tmp_path, in_the_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    script = str(EXAMPLES / "unmodified_script.py")
    command = [warm_python(), script]
    if launcher == "torchrun":
        command[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert main(["run", "--no-report", "--", *command]) == 0
    printed = capfd.readouterr().out
    assert printed.count("loss ") == (2 if launcher == "torchrun" else 1)
    for rank in open_run(tmp_path / "profiles").ranks:
        assert len(rank.steps) == 20
        assert recorded(rank) == [(7, 9)]
