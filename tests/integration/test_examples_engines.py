"""The examples of training engines run as they stand, and leave what their pages promise."""

from __future__ import annotations

import importlib.util
import runpy
import socket
import sys

import pytest
from tests.support.own_process import example, run_python
from tests.support.runs import steps_in_trace

from stepscope import open_run


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.fixture
def run_here(monkeypatch, tmp_path):
    """Runs an example in this process, which saves the time of importing torch."""

    def run(name, *flags):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *flags])
        runpy.run_path(str(example(name)), run_name="__main__")

    return run


def the_rank(folder):
    (rank,) = open_run(folder).ranks
    assert rank.manifest.state == "finished"
    assert rank.manifest.problems == ()
    return rank


@needs("deepspeed")
def test_the_deepspeed_engine(tmp_path):
    run_python([example("deepspeed_engine.py"), "--steps", "8"], tmp_path)
    rank = the_rank(tmp_path / "profiles")
    assert rank.manifest.step_unit == "optimizer step"
    assert len(rank.steps) == 8
    assert steps_in_trace(rank.windows[0].trace_path) == [4, 5]
    kinds = {artifact.kind for artifact in rank.manifest.artifacts}
    assert kinds == {"deepspeed_flops"}


def test_the_megatron_style_loop(run_here, tmp_path):
    flags = ["--profile", "--use-pytorch-profiler", "--tensorboard-dir", "board"]
    flags += ["--profile-step-start", "5", "--profile-step-end", "7"]
    run_here("megatron_style_loop.py", *flags)
    rank = the_rank(tmp_path / "board")
    assert len(rank.steps) == 10
    outer = "forward-backward"
    inner = {f"{outer}/forward-compute", f"{outer}/backward-compute"}
    assert set(rank.steps[3].phases) == {outer, "optimizer"} | inner
    assert rank.steps[3].data_wait_ns > 0
    parts = rank.steps[3].data_wait_ns + sum(rank.steps[3].phases[n] for n in (outer, "optimizer"))
    assert parts <= rank.steps[3].dur_ns
    assert steps_in_trace(rank.windows[0].trace_path) == [5, 6]
    (board,) = (tmp_path / "board").glob(f"{socket.gethostname()}_*.pt.trace.json.gz")
    assert steps_in_trace(board) == [5, 6]


def test_the_megatron_style_loop_is_left_alone_without_its_flags(run_here, tmp_path):
    run_here("megatron_style_loop.py", "--profile", "--train-iters", "3")
    assert list(tmp_path.iterdir()) == []


def test_the_torchtitan_style_loop(run_here, tmp_path):
    run_here("torchtitan_style.py")
    traces = tmp_path / "outputs" / "profiling" / "traces"
    names = sorted(path.relative_to(traces).as_posix() for path in traces.glob("iteration_*/*"))
    assert names == ["iteration_10/rank0_trace.json.gz", "iteration_5/rank0_trace.json.gz"]
    assert len(the_rank(traces).steps) == 11


def test_the_torchtune_style_loop(run_here, tmp_path):
    run_here("torchtune_style.py")
    folder = tmp_path / "profiling_outputs" / "iteration_5"
    names = {path.name for path in folder.iterdir()}
    (trace,) = folder.glob("rank0.*.pt.trace.json.gz")
    assert names == {trace.name, "rank0_key_averages.txt", "rank0_stacks.txt"}
    assert steps_in_trace(trace) == [3, 4]
    assert the_rank(tmp_path / "profiling_outputs").manifest.step_unit == "optimizer step"


@pytest.mark.slow
@needs("ray")
def test_the_ray_workers(tmp_path):
    run_python([example("ray_train.py")], tmp_path, timeout=280)
    run = open_run(tmp_path / "profiles")
    assert [rank.rank for rank in run.ranks] == [0, 1]
    for rank in run.ranks:
        assert rank.manifest.state == "finished"
        assert rank.manifest.world_size == 2
        assert [step.step for step in rank.steps] == list(range(10))
        assert {"forward", "backward"} <= set(rank.steps[0].phases)
        assert steps_in_trace(rank.windows[0].trace_path) == [4, 5]
