"""The guide of a script on the Hugging Face Trainer: its flags, its defaults, its folder."""

from __future__ import annotations

import logging
import re

import pytest
import torch
from tests.support.guides import run_inline, run_script
from tests.support.runs import manifest_of, steps_in_trace

from stepscope import open_run

SCRIPT = """
    import argparse

    from tests.support.training import SmallTraining, batches

    import stepscope

    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=20)
    stepscope.add_arguments(parser, dialect="hf")
    args = parser.parse_args()
    training = SmallTraining()
    with stepscope.Profiler.from_args(args) as profiler:
        for batch in profiler.watch(batches(args.max_steps)):
            training.step(batch)
            profiler.step()
"""


def traces(folder):
    return sorted(
        folder.glob("*.pt.trace.json.gz"), key=lambda path: re.findall(r"\.(\d+)\.pt", path.name)
    )


def test_the_defaults_of_the_guide(monkeypatch, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, ["--enable-profiling", "--max-steps", "50"])
    folder = tmp_path / "profiler_traces"
    (trace,) = traces(folder)
    assert steps_in_trace(trace) == [7, 8, 9]
    manifest = manifest_of(folder)
    assert manifest.steps == 50
    assert manifest.step_unit == "optimizer step"
    options = open_run(folder).job.options
    wanted = ("record_shapes", "profile_memory", "with_stack", "with_flops")
    assert all(options[name] for name in wanted)


def test_the_customised_command_of_the_guide(monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.WARNING, "stepscope")  # restored afterwards
    flags = [
        "--enable-profiling",
        "--profiler-output-dir",
        "./my_traces",
        "--profiler-wait-steps",
        "10",
        "--profiler-warmup-steps",
        "2",
        "--profiler-active-steps",
        "5",
        "--profiler-repeat",
        "2",
        "--enable-memory-logging",
        "--memory-log-steps",
        "5",
        "--max-steps",
        "40",
    ]
    run_inline(monkeypatch, tmp_path, SCRIPT, flags)
    recorded = [steps_in_trace(trace) for trace in traces(tmp_path / "my_traces")]
    assert recorded == [[12, 13, 14, 15, 16], [29, 30, 31, 32, 33]]
    if not torch.cuda.is_available():
        assert "memory_log: left out" in caplog.text


def test_without_the_flag_nothing_is_profiled(monkeypatch, tmp_path):
    run_inline(monkeypatch, tmp_path, SCRIPT, [])
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.gpu
def test_the_line_on_each_gpu(tmp_path):
    script = SCRIPT.replace(
        "training.step(batch)", "training.step(batch); torch.ones(1 << 20, device='cuda').sum()"
    )
    script = script.replace("import argparse", "import argparse\n\n    import torch", 1)
    flags = ["--enable-profiling", "--enable-memory-logging", "--max-steps", "20"]
    result = run_script(tmp_path, script, flags)
    assert result.returncode == 0, result.stderr
    pattern = r"\[Step 9\] GPU 0: Allocated: \d\.\d\dGB, Reserved: \d\.\d\dGB, Peak: \d\.\d\dGB"
    assert re.search(pattern, result.stderr + result.stdout)
    log = (open_run(tmp_path / "profiler_traces").path / "rank00000" / "memory.log").read_text()
    assert re.search(pattern, log)
